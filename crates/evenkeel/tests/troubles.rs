//! Ten troubles, each staged with the real program: health, banner, `top` and `why` name it with cause and cure, and the history
//! explains it after a restart.

#[path = "serve/agent.rs"]
mod agent;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../guard/src/fake_osd.rs"]
mod fake_osd;
#[path = "troubles/outside.rs"]
mod outside;
#[path = "serve/port.rs"]
mod port;
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "serve/server.rs"]
mod server;
#[path = "troubles/stage.rs"]
mod stage;
#[path = "troubles/storage.rs"]
mod storage;
#[path = "troubles/targets.rs"]
mod targets;
