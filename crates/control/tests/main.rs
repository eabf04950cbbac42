//! Tests of the control algorithms' guarantees, in one program: every test program has to be linked.

mod admission;
mod admission_baselines;
mod admission_defects;
mod admission_elastic;
mod admission_properties;
mod duty;
#[path = "support/admission_events.rs"]
mod events;
mod mclock_guarantees;
mod mclock_model;
mod mclock_token_bucket;
mod membership;
mod placement;
mod pool;
mod pool_guarantee;
mod pool_precedence;
mod pool_reserved;
mod pool_shares;
mod pool_slots;
mod pool_target;
mod response;
mod sharding;
mod slots;
mod slots_hosts;
mod slots_knee;
mod throughput;
mod totals;
