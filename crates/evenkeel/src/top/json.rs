//! The output of `evenkeel top --json`: the rows of all servers and agents at one moment, as one line.
//!
//! Units are last in the names. A figure that was not measured is `null`.

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_policy::health::Trouble;
use serde::Serialize;

use super::model::{Link, Model};
use super::row::{Row, Tab};

/// All servers and agents at one moment.
#[derive(Debug, Serialize)]
struct Shown<'m> {
    /// Unix time of the answers in seconds; with `--at` that of the moment shown.
    at_s: f64,
    servers: Vec<Server<'m>>,
    /// Pools of servers and agents, and OSDs.
    pools: Vec<Line<'m>>,
    /// Tenants of servers; clients, groups and queues of agents.
    tenants: Vec<Line<'m>>,
    /// Volumes of servers.
    volumes: Vec<Line<'m>>,
    /// Troubles of all servers and agents, worst first.
    health: Vec<Ill<'m>>,
}

/// A server or an agent.
#[derive(Debug, Serialize)]
struct Server<'m> {
    /// Address or socket of the server or agent.
    server: &'m str,
    /// Facts for people: name and version of the program, time since its start and so on.
    facts: &'m [String],
    /// Time since the start; `null` without an answer, and of the past.
    uptime_s: Option<f64>,
    /// `live`, `past`, or `lost`: then it has no rows.
    link: &'static str,
    /// The reason why the server or agent does not answer; `null` if it answers.
    error: Option<&'m str>,
}

/// A row of a view.
#[derive(Debug, Serialize)]
struct Line<'m> {
    server: &'m str,
    /// `pool`, `osd`, `tenant`, `client`, `group`, `queue` or `volume`.
    kind: &'static str,
    #[serde(flatten)]
    row: &'m Row,
}

/// A trouble of a server or an agent.
#[derive(Debug, Serialize)]
struct Ill<'m> {
    server: &'m str,
    /// Level, object, cause and cure of the trouble; one of the past has no cure.
    #[serde(flatten)]
    trouble: &'m Trouble,
}

/// Unix time now, in seconds.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The models as one line of JSON, which ends with a newline. `at_s`: their moment, Unix time.
///
/// # Errors
/// When the record cannot be serialised.
pub(super) fn line<'m>(models: impl Iterator<Item = &'m Model> + Clone, at_s: f64) -> anyhow::Result<String> {
    let rows = |tabs: &[Tab]| -> Vec<Line<'m>> {
        let answering = models.clone().filter(|model| !is_lost(model));
        answering.flat_map(|model| lines(model, tabs)).collect()
    };
    let mut health: Vec<Ill<'m>> = models.clone().filter(|model| !is_lost(model)).flat_map(ills).collect();
    health.sort_by_key(|ill| ill.trouble.level);
    let shown = Shown {
        at_s,
        servers: models.clone().map(server).collect(),
        pools: rows(&[Tab::Pools, Tab::Guarded, Tab::Osds]),
        tenants: rows(&[Tab::Tenants, Tab::Initiators, Tab::Groups, Tab::Queues]),
        volumes: rows(&[Tab::Volumes]),
        health,
    };
    Ok(serde_json::to_string(&shown)? + "\n")
}

/// True if the newest figures of the model are from before its server went away, or if there are none.
fn is_lost(model: &Model) -> bool {
    matches!(model.link, Link::Waiting | Link::Lost { .. })
}

fn server(model: &Model) -> Server<'_> {
    let (link, error) = match &model.link {
        Link::Waiting => ("lost", None),
        Link::Lost { error, .. } => ("lost", Some(error.as_str())),
        Link::Live => ("live", None),
        Link::Past => ("past", None),
    };
    let uptime_s = (link == "live").then_some(model.sample.uptime_s);
    Server { server: &model.place, facts: &model.sample.head, uptime_s, link, error }
}

/// The rows of views that pass the filter, in the chosen order.
fn lines<'m>(model: &'m Model, tabs: &[Tab]) -> Vec<Line<'m>> {
    let of = move |tab: Tab| {
        let line = move |row| Line { server: &model.place, kind: tab.about().one, row };
        model.rows_of(tab).into_iter().map(line)
    };
    tabs.iter().copied().flat_map(of).collect()
}

/// The troubles of a server or an agent.
fn ills(model: &Model) -> impl Iterator<Item = Ill<'_>> {
    model.troubles().iter().map(move |trouble| Ill { server: &model.place, trouble })
}
