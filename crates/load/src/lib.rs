//! A batching load generator for NBD servers.
//!
//! | module | question |
//! |---|---|
//! | `job` | what was asked for? |
//! | `stream` | which requests, in which order? |
//! | `pace` | when is each due? |
//! | `content`, `model`, `region` | what may each block hold? |
//! | `journal` | what must survive a power cut? |
//! | `connection`, `send`, `worker` | sockets and threads |
//! | `measure`, `run`, `report` | what came of it? |
//!
//! One thread serves a group of connections. Requests that are due together leave in one
//! send, answers are parsed in place out of one large receive, and what a batch can share
//! (clock reading, system call) it shares, so that the server is the bottleneck.

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
