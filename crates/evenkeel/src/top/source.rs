//! The requests of `evenkeel top` to a server or an agent.

use std::time::Duration;

use anyhow::Context;
use evenkeel_guard::loops::record;
use evenkeel_net::http::Place;
use evenkeel_policy::decision::Decisions;
use evenkeel_policy::state::{Clients, State};
use serde::de::DeserializeOwned;

use super::row::{Id, Tab};
use crate::control::{first, get, path};

/// Time limit for each part of an answer: a server answers within milliseconds, or it hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of newest decisions that are requested for a detail view; the user would not read more.
const DECISIONS: usize = 64;

/// The row in the detail view, about which further figures are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The row's view.
    pub(super) tab: Tab,
    /// The row's identity in the view.
    pub(super) id: Id,
}

/// The answer to a request for the whole state.
#[derive(Debug)]
pub(super) enum Answer {
    /// The state of a server, and the list of its connections.
    Serve(Box<State>, Clients),
    /// The state of an agent.
    Guard(Box<record::State>),
}

/// The answer to a request about one row.
#[derive(Debug)]
pub(super) enum More {
    /// The state of a server with all figures of one tenant and none of other tenants.
    Serve(Box<State>),
    /// The newest decisions of an agent about one pool.
    Guard(Decisions),
}

/// The source of all answers: the server or agent that is shown.
#[derive(Debug)]
pub(super) struct Source {
    /// Places at which to look for a server or an agent, in order; after the first answer only the place that gave it.
    places: Vec<Place>,
    /// True if an agent answers, false for a server; `None` before the first answer.
    agent: Option<bool>,
}

impl Source {
    /// A source that asks `places` in order until one answers.
    pub(super) fn new(places: Vec<Place>) -> Self {
        Self { places, agent: None }
    }

    /// The first of the source's places as text; after the first answer the one that answers.
    pub(super) fn place(&self) -> String {
        self.places.first().map_or_else(String::new, Place::to_string)
    }

    /// The source's places; after the first answer the one that answers.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Requests the whole state of the server or agent.
    ///
    /// # Errors
    /// When no place answers, or an answer cannot be parsed.
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

    /// Requests further figures about the row `wanted`; `None` if its kind has none.
    ///
    /// # Errors
    /// When the place does not answer, or its answer cannot be parsed.
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

    /// Requests the state from the places in order. Returns the first answer as text, and forgets all other places.
    fn find(&mut self) -> anyhow::Result<String> {
        let (place, text) = first(&self.places, "/api/v1/state?brief=true", PATIENCE)?;
        self.places = vec![place.clone()];
        Ok(text)
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text)
        .context("the server speaks another version of the API: use the server's version of evenkeel")
}
