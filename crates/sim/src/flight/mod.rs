//! Recordings of `evenkeel record` in the simulator: replay, learning of a device, and advice on a policy.
//!
//! | module | contents |
//! |---|---|
//! | [`infer`] | the causes of requests: the outside world, or the completion of others |
//! | [`load`] | a recording as a load: the requests of one pool, by client, with their causes |
//! | [`figures`] | rates, percentiles and missed targets, of recorded and of simulated requests |
//! | [`policy`] | policies and devices as texts |
//! | `groups` | the control groups of a host as tenants of a policy |
//! | [`replay`] | a load against a modelled device under a policy |
//! | `device` | a load against a modelled device alone |
//! | [`direct`], [`family`], `search` | estimates, families of devices, and the search of parameters |
//! | `surface` | a table of latencies, for a device that no family is like |
//! | [`fit`] | the device of a recording |
//! | [`advise`], `speed` | a policy that meets targets, and the speed of a device that would |
//! | [`text`], [`page`] | results for a terminal, and as a page |

pub mod advise;
mod device;
pub mod direct;
pub mod family;
pub mod figures;
pub mod fit;
mod groups;
pub mod infer;
mod least_squares;
pub mod load;
pub mod page;
pub mod policy;
#[cfg(test)]
mod predictions;
pub mod replay;
mod search;
mod speed;
mod surface;
#[cfg(test)]
mod tests;
pub mod text;
