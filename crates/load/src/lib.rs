//! A load generator for NBD servers that sends requests in batches.
//!
//! | module | contents |
//! |---|---|
//! | `job` | the options of a job |
//! | `stream` | the requests, and their order |
//! | `pace` | the instants at which requests are due |
//! | `content`, `model`, `region` | the possible content of each block |
//! | `journal` | the writes that must survive a power cut |
//! | `connection`, `send`, `certificates`, `worker` | sockets, TLS and threads |
//! | `measure`, `run`, `report` | the results |
//!
//! One thread serves a group of connections. Requests that are due together are sent by one
//! system call; answers are parsed in place in the buffer of one large receive; all answers of a
//! batch share one clock reading and one system call. So the server is the bottleneck.

mod certificates;
mod connection;
mod content;
mod error;
mod job;
mod journal;
mod measure;
mod model;
mod pace;
mod region;
mod report;
mod run;
mod send;
mod stream;
mod worker;

pub use error::Error;
pub use job::{Job, JobOptions, jobs, parse_jobs, seed_from_time};
pub use journal::{Journal, Record};
pub use report::{Report, check_result, progress_line};
pub use run::{Extras, JobResult, run};
