//! The end of the stream of a connection that is not read at present, because it has as many requests outstanding as it may or
//! waits for buffer memory.
//!
//! From the end of the stream on, reads are not carried out, and changes go behind other requests, unless a disconnect request
//! came before: then everything is carried out. The unread rest of the stream says which it is.

use super::Worker;
use super::connection::Connection;

/// Largest number of ends, of streams or of connections, that are handled in one round of the worker's loop: some 100 us. Epoll
/// reports the others again. Thousands of clients may go at once.
pub(super) const ENDS_IN_A_ROUND: u32 = 8;

impl Worker {
    /// Handles the end of the stream of a connection that is not read: if no disconnect request is in the unread rest, requests
    /// that wait are treated as those of a half-closed client from now on. A rest that is longer than [`super::SCRATCH`] is
    /// looked at again once the connection has received some of it.
    pub(super) fn stream_has_ended(&mut self, connection: &mut Connection) {
        connection.looked_at = Some(connection.received);
        let mut scratch = std::mem::take(&mut self.scratch);
        let have = connection.leftover.len();
        scratch[..have].copy_from_slice(&connection.leftover);
        let more = connection.transport.peek_all(&mut scratch[have..]);
        if let Some(more) = more
            && !connection.says_goodbye(&scratch[..have + more])
        {
            self.shared.slots.half_close(connection.key);
        }
        self.scratch = scratch;
    }
}
