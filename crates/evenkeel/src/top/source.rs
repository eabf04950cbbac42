//! Asking a server or an agent.

use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_guard::loops::record;
use evenkeel_net::http::Place;
use evenkeel_policy::decision::Decisions;
use evenkeel_policy::state::{Clients, State};
use serde::de::DeserializeOwned;

use super::row::{Id, Tab};
use crate::control::{get, path};

/// How long an answer may take. Who is asked answers in milliseconds, or hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// Decisions asked for at once; more would not be read.
const DECISIONS: usize = 64;

/// The row that the user wants details of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The tab.
    pub(super) tab: Tab,
    /// Which one.
    pub(super) id: Id,
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) enum Answer {
    /// A server and its connections.
    Serve(Box<State>, Clients),
    /// An agent.
    Guard(Box<record::State>),
}

/// More about one thing.
#[derive(Debug)]
pub(super) enum More {
    /// The server, with all about one tenant and nothing of others.
    Serve(Box<State>),
    /// The decisions of an agent.
    Guard(Decisions),
}

/// Where to ask.
#[derive(Debug)]
pub(super) struct Source {
    /// Places that may answer; the first that does is asked from then on.
    places: Vec<Place>,
    /// True if an agent answers there; `None` before the first answer.
    agent: Option<bool>,
}

impl Source {
    /// Looks in this order.
    pub(super) fn new(places: Vec<Place>) -> Self {
        Self { places, agent: None }
    }

    /// Where the answers come from.
    pub(super) fn place(&self) -> String {
        self.places.first().map_or_else(String::new, Place::to_string)
    }

    /// Asks how everything does.
    ///
    /// # Errors
    /// When no place answers, or an answer is not understood.
    pub(super) fn ask(&mut self) -> anyhow::Result<Answer> {
        let text = self.find()?;
        // An answer of the one kind lacks fields of the other.
        let agent = self.agent.unwrap_or_else(|| serde_json::from_str::<record::State>(&text).is_ok());
        let answer = if agent {
            Answer::Guard(Box::new(parse(&text)?))
        } else {
            let state = parse(&text)?;
            // A server of before there were any tells none.
            let clients = self.get("/api/v1/clients").ok().and_then(|text| parse(&text).ok());
            Answer::Serve(state, clients.unwrap_or_default())
        };
        self.agent = Some(agent);
        Ok(answer)
    }

    /// Asks for more about one thing; `None` if there is nothing more.
    ///
    /// # Errors
    /// As above.
    pub(super) fn more(&self, wanted: &Wanted) -> anyhow::Result<Option<More>> {
        let Wanted { tab, id } = wanted;
        match (self.agent, tab) {
            (Some(false), Tab::Tenants) => {
                let text = self.get(&path("/api/v1/state?tenant=", &id.name))?;
                Ok(Some(More::Serve(parse(&text)?)))
            }
            (Some(true), _) => {
                let pool = if id.of.is_empty() { &id.name } else { &id.of };
                let asked = path("&pool=", pool);
                let text = self.get(&format!("/api/v1/decisions?count={DECISIONS}{asked}"))?;
                Ok(Some(More::Guard(parse(&text)?)))
            }
            _ => Ok(None),
        }
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        get(self.places.first().context("no server is named; give --status ADDR:PORT")?, path, PATIENCE)
    }

    /// The state as text, from the first place that answers; the others are forgotten then.
    fn find(&mut self) -> anyhow::Result<String> {
        let mut complaints = Vec::new();
        for place in &self.places {
            match get(place, "/api/v1/state?brief=true", PATIENCE) {
                Ok(text) => {
                    self.places = vec![place.clone()];
                    return Ok(text);
                }
                Err(error) => complaints.push((place, error)),
            }
        }
        if let [(_, error)] = &complaints[..] {
            return Err(anyhow!("{error:#}"));
        }
        let places: Vec<String> = complaints.iter().map(|(place, _)| place.to_string()).collect();
        Err(anyhow!(
            "neither a server nor an agent answers at {}; start one with `evenkeel serve`, or name it with --status, --control, --data-dir or --config",
            places.join(", ")
        ))
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).context("the server speaks another version of the API: use an evenkeel of its version")
}
