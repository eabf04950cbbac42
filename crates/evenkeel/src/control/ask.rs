//! Requests that change a running server, and the lines that they print.

use std::time::Duration;

use anyhow::{Context, Error, ensure};
use clap::Args;
use evenkeel_net::http::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{self, Refusal};
use super::save::{self, Part, Saved};
use super::{Connect, OTHER_VERSION, PATIENCE, changes, edit};
use crate::output::{self, Usage};

/// The server that a command talks to, and the format of the printed answer.
#[derive(Args)]
pub(crate) struct Ask {
    /// Print the answer as JSON, as the API gives it
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) connect: Connect,
}

/// Options of a command that changes settings: the server, and the place in which the change is kept.
#[derive(Args)]
pub(crate) struct Keep {
    /// Also write the change into the configuration file: that of --config, else the server's
    ///
    /// Comments, order and layout of the file stay. A rate of 0 removes its key. The file is replaced as a whole, with its
    /// mode and owner, and only if the configuration in it can be used. With --json the answer has `saved`.
    #[arg(long)]
    save: bool,

    #[command(flatten)]
    ask: Ask,
}

/// A server's answer to a change: the changes that it made, one sentence each.
#[derive(Deserialize, Serialize)]
struct Changed {
    changes: Vec<String>,
    /// The result of `--save`; `None` without it.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    saved: Option<Saved>,
}

impl Changed {
    fn read(answer: &str) -> anyhow::Result<Self> {
        serde_json::from_str(answer).context(OTHER_VERSION)
    }

    /// The changes in lines; the line `none` if there are none.
    fn text(&self, none: &str) -> String {
        match self.changes.as_slice() {
            [] => format!("{none}\n"),
            changes => changes.iter().map(|change| format!("{change}\n")).collect(),
        }
    }
}

/// The request for the changes that a reload would make.
const PREVIEW: &str = "/api/v1/reload/preview";

impl Ask {
    /// Requests a change and prints the changes that the server made.
    pub(super) fn change(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<()> {
        let changed = Changed::read(&self.answer(method, path, body)?)?;
        output::show(self.json, &changed, |changed| changed.text("nothing changed"))
    }

    /// Prints the changes that a reload would make.
    pub(super) fn preview(&self) -> anyhow::Result<()> {
        let answer = self.answer(Method::POST, PREVIEW, None);
        let answer =
            answer.map_err(|error| if client::is_unknown(&error) { Error::msg(OTHER_VERSION) } else { error })?;
        output::show(self.json, &Changed::read(&answer)?, |changed| changed.text("nothing would change"))
    }

    /// Requests a change and returns the body of the server's answer.
    fn answer(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<String> {
        let answer = client::send(&self.connect.socket()?, PATIENCE, method, path, body);
        if self.json
            && let Some(refusal) = answer.as_ref().err().and_then(|error| error.downcast_ref::<Refusal>())
        {
            output::say(&format!("{}\n", refusal.body.trim_end()));
        }
        answer
    }
}

impl Keep {
    /// Requests a change of settings, saves it if that was asked for, and prints the place in which it is kept. `example`: an
    /// option for the error message if `body` changes nothing.
    pub(super) fn patch(&self, part: Part<'_>, body: &Value, example: &str) -> anyhow::Result<()> {
        ensure!(changes(body), Usage(format!("nothing to change: give at least one option, for example {example}")));
        self.change(Method::PATCH, part, body)
    }

    /// As [`Self::patch`], for the removal of a tenant or pool.
    pub(super) fn remove(&self, part: Part<'_>) -> anyhow::Result<()> {
        self.change(Method::DELETE, part, &Value::Null)
    }

    /// Refuses the name of a tenant or pool that the server has.
    pub(super) fn refuse_known(&self, part: Part<'_>) -> anyhow::Result<()> {
        let (in_force, table) = (in_force(&self.ask.connect, PATIENCE)?, part.table());
        let known = table.iter().try_fold(&in_force, |config, name| config.get(name));
        ensure!(
            known.is_none(),
            "[{}] exists already; nothing was changed\nwhat to do: choose another name, or change it with `set`",
            edit::dotted(&table)
        );
        Ok(())
    }

    fn change(&self, method: Method, part: Part<'_>, body: &Value) -> anyhow::Result<()> {
        let Self { save, ask: Ask { json, connect } } = self;
        let ready =
            if *save { Some(save::prepare(&connect.socket()?, connect.config.as_deref(), part, body)?) } else { None };
        let answer = self.ask.answer(method, &part.api(), Some(body).filter(|body| !body.is_null()))?;
        // The change is in force: nothing that can fail may come before it is saved, and it is printed even if saving fails.
        let saved = ready.map(save::Ready::commit).transpose();
        let changed = Changed::read(&answer);
        if *json {
            let (saved, failed) = match saved {
                Ok(saved) => (saved, None),
                Err(error) => (None, Some(error)),
            };
            let printed =
                changed.and_then(|changed| output::show(true, &Changed { saved, ..changed }, |_| String::new()));
            return failed.map_or(printed, Err);
        }
        let printed = changed.and_then(|changed| {
            output::print(&changed.text("nothing changed"))?;
            Ok(changed.changes.is_empty())
        });
        let saved = saved?;
        let is_unchanged = printed?;
        match saved {
            Some(saved) => output::print(&(saved.text() + &self.remainder())),
            None if is_unchanged => Ok(()),
            None if matches!(part, Part::Volume(name) if !self.would_undo(name)) => Ok(()),
            None if body.is_null() => output::print(&format!(
                "the removal is in force until the next reload or restart; to keep it, remove [{}] from the configuration file too\n",
                edit::dotted(&part.table())
            )),
            None if body.get("create").is_some() => output::print(
                "the change is in force until the next reload or restart; to keep it, repeat its options with `set` and --save\n",
            ),
            None => output::print(
                "the change is in force until the next reload or restart; to keep it, repeat the command with --save\n",
            ),
        }
    }

    /// A line about changes that a reload would make although the change is saved, such as those of commands without `--save`;
    /// empty if there are none.
    fn remainder(&self) -> String {
        let left = self.left();
        if left.is_empty() {
            String::new()
        } else {
            format!("beside the saved change a reload would still make changes: {}\n", left.join(", "))
        }
    }

    /// True if a reload would change this volume: the change of one that was created by command is on record.
    fn would_undo(&self, volume: &str) -> bool {
        self.left().iter().any(|change| change.starts_with(&format!("volume {volume} changed")))
    }

    /// The changes that a reload would make.
    fn left(&self) -> Vec<String> {
        let answer = self.ask.connect.send(Method::POST, PREVIEW, None, PATIENCE);
        let left = answer.ok().and_then(|text| serde_json::from_str::<Changed>(&text).ok());
        let mut left = left.map(|changed| changed.changes).unwrap_or_default();
        left.retain(|change| !change.starts_with("warning: "));
        left
    }
}

/// The configuration in force; each part of the answer may take `patience`.
///
/// # Errors
/// When no server answers, or its answer cannot be parsed.
pub(super) fn in_force(connect: &Connect, patience: Duration) -> anyhow::Result<Value> {
    let text = connect.send(Method::GET, "/api/v1/config", None, patience)?;
    serde_json::from_str(&text).context(OTHER_VERSION)
}
