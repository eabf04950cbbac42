//! Marks: events at a point in time.

/// An event at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Time of the event, Unix time in seconds.
    pub at: u64,
    /// The event.
    pub event: Event,
}

/// The event of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A decision of a controller.
    Decision {
        /// Name of the pool.
        pool: String,
        /// Name of the tenant that the decision is about; empty if it is about the whole pool.
        tenant: String,
        /// Name of the reason, `reads_over_target` for example.
        reason: String,
        /// The reason as a sentence.
        sentence: String,
    },
    /// The begin or the end of a trouble.
    Trouble {
        /// True if the trouble begins, false if it ends.
        begins: bool,
        /// `critical` or `warning`.
        level: String,
        /// Name of the kind of trouble, `io_errors` for example.
        kind: String,
        /// The object in trouble, `tenant shop in pool main` for example; empty for the whole server or agent.
        about: String,
        /// The cause as a sentence.
        sentence: String,
    },
    /// The program that records started, or was stopped. Without a stop before a start it was ended by a crash, by `kill -9`
    /// or by a loss of power.
    Program {
        /// True if the program started, false if it was stopped.
        begins: bool,
        /// Name of the program: `server` or `agent`.
        name: String,
        /// Version of the program.
        version: String,
    },
}
