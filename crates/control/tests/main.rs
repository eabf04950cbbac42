//! The algorithms, by what they promise: one program, because each costs a link.

mod admission;
mod admission_baselines;
mod admission_defects;
mod admission_elastic;
mod admission_properties;
mod duty;
#[path = "support/admission_events.rs"]
mod events;
mod exchange;
mod fleet;
mod mclock_model;
mod mclock_promises;
mod mclock_token_bucket;
mod placement;
mod pool;
mod pool_goal;
mod pool_promise;
mod pool_shares;
mod pool_slots;
mod response;
mod slots;
mod slots_hosts;
mod slots_knee;
mod throughput;
