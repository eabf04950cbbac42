//! Requests to a server or an agent.

use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_guard::loops::record;
use evenkeel_net::http::Place;
use evenkeel_policy::decision::Decisions;
use evenkeel_policy::state::{Clients, State};
use serde::de::DeserializeOwned;

use super::row::{Id, Tab};
use crate::control::{get, path};

/// Longest wait for an answer: a server answers in milliseconds, or hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of decisions that are requested; the user would not read more.
const DECISIONS: usize = 64;

/// The row that the user wants details of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its view.
    pub(super) tab: Tab,
    /// Its name in the view.
    pub(super) id: Id,
}

/// The answer to a request for the whole state.
#[derive(Debug)]
pub(super) enum Answer {
    /// The state of a server, and its connections.
    Serve(Box<State>, Clients),
    /// The state of an agent.
    Guard(Box<record::State>),
}

/// A further answer about one row.
#[derive(Debug)]
pub(super) enum More {
    /// The state of a server, with everything about one tenant and nothing about others.
    Serve(Box<State>),
    /// Decisions of an agent.
    Guard(Decisions),
}

/// The source of answers.
#[derive(Debug)]
pub(super) struct Source {
    /// Places that may answer; after the first answer, the place that gave it.
    places: Vec<Place>,
    /// True if an agent answers, false for a server; `None` before the first answer.
    agent: Option<bool>,
}

impl Source {
    /// A source that tries these places in order.
    pub(super) fn new(places: Vec<Place>) -> Self {
        Self { places, agent: None }
    }

    /// The place of the source, as text.
    pub(super) fn place(&self) -> String {
        self.places.first().map_or_else(String::new, Place::to_string)
    }

    /// Requests the whole state.
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

    /// Requests further figures about one row; `None` if there are none.
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

    /// The state as text, from the first place that answers; other places are dropped.
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
