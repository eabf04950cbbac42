//! A process of `evenkeel guard run` for each test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running agent in dry-run mode, in which it changes no settings of the host; killed when the value is dropped.
pub(crate) struct Agent {
    pub(crate) child: Child,
    /// Address and port of the agent's API.
    pub(crate) status: String,
}

impl Agent {
    /// Starts the agent with the configuration file `config`, and waits for its address. `command` runs the program `evenkeel`.
    pub(crate) fn spawn(command: &mut Command, config: &Path) -> Self {
        command.args(["guard", "run", "--dry-run", "--config"]).arg(config);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the agent starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("http://")?.split('/').next()?.to_owned()));
        Self { child, status: address.expect("the address of the agent") }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
