//! `evenkeel tenant`: lists, shows and changes tenants of a running server.

use anyhow::ensure;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use evenkeel_policy::config::Match;
use evenkeel_policy::units::Bytes;
use serde_json::{Value, json};

use super::ask::{Ask, Keep};
use super::limits::{LatencyOptions, LimitOptions, parse_weight_at};
use super::save::Part;
use super::{given, object, one, show, usable_name, usable_pool_name, whole};
use crate::output::{self, Usage};

/// `evenkeel tenant`.
#[derive(Subcommand)]
pub(crate) enum TenantCommand {
    /// List the tenants of each pool
    List {
        #[command(flatten)]
        ask: Ask,
    },
    /// Show a tenant: its settings, verdicts and throttles
    Show {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Add a tenant with its QoS policy, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file.
    Add(Box<SetTenant>),
    /// Change the QoS policy of a tenant, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file. Lists are
    /// replaced; what no option names stays. Keys for `evenkeel guard` alone are set in its file: max_in_flight,
    /// guarantee.read.ceiling, guarantee.write.ceiling.
    Set(Box<SetTenant>),
    /// Remove a tenant, at once; its connections pass to other tenants
    ///
    /// In force until the next reload or restart, unless --save removes it from the configuration file.
    #[command(alias = "delete")]
    Remove {
        /// Name of the tenant
        #[arg(value_parser = usable_name)]
        name: String,
        #[command(flatten)]
        keep: Keep,
    },
}

/// Options of `evenkeel tenant set`; what is left out stays as it is.
#[derive(Args)]
pub(crate) struct SetTenant {
    /// Name of the tenant
    #[arg(value_parser = usable_name)]
    name: String,
    /// Requests per second that the tenant gets whenever it asks; 0 = no reservation
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    reservation_iops: Option<u64>,
    /// Bytes per second that the tenant gets whenever it asks, for example 50MB; 0 = no reservation
    #[arg(long, value_name = "BYTES")]
    reservation_bytes_per_s: Option<Bytes>,
    #[command(flatten)]
    limit: LimitOptions,
    /// Requests per second guaranteed over each second in which the tenant asks, reads and writes together; 0 = no guarantee
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with = "guarantee_bytes_per_s")]
    guarantee_iops: Option<u64>,
    /// Bytes per second guaranteed, reads and writes together, for example 100MB; 0 = no guarantee
    #[arg(long, value_name = "BYTES")]
    guarantee_bytes_per_s: Option<Bytes>,
    /// Read requests per second guaranteed; writes are not throttled for this guarantee; 0 = no guarantee
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with_all = ["guarantee_read_bytes_per_s", "guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_read_iops: Option<u64>,
    /// Bytes per second guaranteed for reads alone; 0 = no guarantee
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_read_bytes_per_s: Option<Bytes>,
    /// Write requests per second guaranteed; reads are not throttled for this guarantee; 0 = no guarantee
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with_all = ["guarantee_write_bytes_per_s", "guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_write_iops: Option<u64>,
    /// Bytes per second guaranteed for writes alone; 0 = no guarantee
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_write_bytes_per_s: Option<Bytes>,
    #[command(flatten)]
    latency: LatencyOptions,
    /// Weight: share of the service that reservations leave, relative to other tenants
    #[arg(long, value_parser = whole::<u32>)]
    weight: Option<u32>,
    /// Weight at some hours of the day, by the host's clock, for example 8@22:00-06:00; "none" = --weight at all hours
    #[arg(long, value_parser = parse_weight_at, value_name = "WEIGHT@HOURS")]
    weight_at: Option<Value>,
    /// Priority: background is served when no normal tenant can be
    #[arg(long, value_parser = PossibleValuesParser::new(["normal", "background"]))]
    priority: Option<String>,
    /// Rank in which the tenant is throttled for latency targets of others
    #[arg(long, value_parser = PossibleValuesParser::new(["never", "last", "normal", "always"]))]
    throttle: Option<String>,
    /// Clients and volumes of the tenant, in place of the present ones: volume:db-*, address:10.1.0.0/16, uid:1000,
    /// certificate:NAME; give all of them, the option several times
    #[arg(long = "match", value_name = "ENTRY")]
    matches: Vec<Match>,
    /// Treat each volume of the tenant as a tenant of its own
    #[arg(long)]
    each: Option<bool>,
    /// Change the settings on this pool alone: there a limit, a reservation or a guarantee replaces the tenant's as a whole
    #[arg(long, value_parser = usable_pool_name, conflicts_with_all = ["matches", "each"])]
    pool: Option<String>,
    /// Remove all settings on --pool, so that those of the tenant apply there
    #[arg(long, requires = "pool")]
    inherit: bool,
    /// Make a new tenant if there is none of this name
    #[arg(long)]
    create: bool,
    /// Accept values that make clients seem to hang, such as a limit of less than one request a second
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    keep: Keep,
}

/// Runs `evenkeel tenant`.
///
/// # Errors
/// When no server answers, or the server refuses the command and changes nothing.
pub(crate) fn tenant(command: TenantCommand) -> anyhow::Result<()> {
    let set = match command {
        TenantCommand::List { ask } => {
            let state = ask.connect.state()?;
            return output::show(ask.json, &show::by_pool(&state), |_| show::tenants(&state));
        }
        TenantCommand::Show { name, ask } => return one::tenant(&ask, &name),
        TenantCommand::Remove { name, keep } => return keep.remove(Part::Tenant(&name)),
        TenantCommand::Add(set) => {
            set.keep.refuse_known(Part::Tenant(&set.name))?;
            SetTenant { create: true, ..*set }
        }
        TenantCommand::Set(set) => *set,
    };
    set.keep.patch(Part::Tenant(&set.name), &body(&set)?, "--limit-iops 500")
}

/// The change for the request: of the tenant's settings, or of those on one pool.
fn body(set: &SetTenant) -> anyhow::Result<Value> {
    let consent =
        [("create", set.create.then_some(Value::from(true))), ("force", set.force.then_some(Value::from(true)))];
    let settings = [
        ("reservation", rates(set.reservation_iops, set.reservation_bytes_per_s)),
        ("limit", set.limit.patch()),
        ("guarantee", guarantee(set)),
        ("latency", set.latency.patch()?),
        ("weight", set.weight.map(Value::from)),
        ("weight_at", set.weight_at.clone()),
        ("priority", set.priority.clone().map(Value::from)),
        ("throttle", set.throttle.clone().map(Value::from)),
        ("match", (!set.matches.is_empty()).then(|| json!(set.matches))),
        ("each", set.each.map(Value::from)),
    ];
    let Some(pool) = &set.pool else { return Ok(object(settings.into_iter().chain(consent))) };
    let own = given(settings);
    let message = "--inherit removes all settings on --pool; leave out --inherit, or the options that set some";
    ensure!(!set.inherit || own.is_none(), Usage(message.into()));
    let own = if set.inherit { Some(Value::Null) } else { own };
    let pools = own.map(|own| object([(pool.as_str(), Some(own))]));
    Ok(object([("pools", pools)].into_iter().chain(consent)))
}

/// A pair of rates for the request; `None` if neither was given.
pub(super) fn rates(iops: Option<u64>, bytes_per_s: Option<Bytes>) -> Option<Value> {
    given([("iops", iops.map(Value::from)), ("bytes_per_s", bytes_per_s.map(|rate| json!(rate)))])
}

/// The tenant's guarantee for the request. A guarantee in requests replaces one in bytes, and the reverse. A guarantee for
/// reads and writes together replaces separate ones.
fn guarantee(set: &SetTenant) -> Option<Value> {
    let rates = |iops: Option<u64>, bytes_per_s: Option<Bytes>| match (iops, bytes_per_s) {
        (None, None) => None,
        (Some(iops), _) => Some(json!({ "iops": iops, "bytes_per_s": null })),
        (None, Some(rate)) => Some(json!({ "iops": null, "bytes_per_s": rate })),
    };
    if let Some(Value::Object(mut together)) = rates(set.guarantee_iops, set.guarantee_bytes_per_s) {
        together.extend([("read".into(), Value::Null), ("write".into(), Value::Null)]);
        return Some(together.into());
    }
    let read = rates(set.guarantee_read_iops, set.guarantee_read_bytes_per_s);
    let write = rates(set.guarantee_write_iops, set.guarantee_write_bytes_per_s);
    let each = read.is_some() || write.is_some();
    let requests = [set.guarantee_read_iops, set.guarantee_write_iops].into_iter().flatten();
    let bytes = [set.guarantee_read_bytes_per_s, set.guarantee_write_bytes_per_s].into_iter().flatten();
    let given = requests.chain(bytes.map(|bytes| bytes.0)).any(|rate| rate > 0);
    // A guarantee takes the place of one of all; none leaves it alone.
    let none = given.then_some(Value::Null);
    each.then(|| object([("iops", none.clone()), ("bytes_per_s", none), ("read", read), ("write", write)]))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: SetTenant,
    }

    fn asked(line: &str) -> anyhow::Result<Value> {
        body(&Line::try_parse_from(line.split(' ')).expect(line).set)
    }

    #[test]
    fn settings_are_of_the_tenant_or_of_one_pool() {
        for (line, expected) in [
            ("set a --weight 3 --each true", json!({ "weight": 3, "each": true })),
            ("set a --pool fast --weight 3 --force", json!({ "pools": { "fast": { "weight": 3 } }, "force": true })),
            (
                "set a --pool fast --limit-iops 5 --limit-burst 50ms --latency none",
                json!({ "pools": { "fast": { "limit": { "iops": 5, "burst": "50ms" }, "latency": null } } }),
            ),
            ("set a --pool fast --inherit", json!({ "pools": { "fast": null } })),
            ("set a --pool fast", json!({})),
        ] {
            assert_eq!(asked(line).expect(line), expected, "{line}");
        }
        let refused = asked("set a --pool fast --inherit --weight 3").expect_err("settings that are removed");
        assert!(refused.is::<Usage>(), "{refused}");
        for line in ["set a --inherit", "set a --pool fast --each true", "set a --pool fast --match volume:b"] {
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
