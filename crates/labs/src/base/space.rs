//! Network namespaces on this machine.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::Result;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::base::packages;
use crate::base::process::{self, Running};

/// The reason why this machine cannot have network namespaces with packet filters; `None` if it can.
pub(crate) fn missing() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    let programs = || packages::missing_text(&["ip", "nft", "nsenter"]);
    if is_root { programs() } else { Some("network namespaces need root".to_owned()) }
}

/// A network namespace, kept by a process; the namespace ends with its last process.
pub(crate) struct Space(Running);

impl Space {
    /// Makes a namespace; its devices are down.
    pub(crate) fn make() -> Result<Self> {
        let mut first = process::program("sleep");
        // SAFETY: between fork and exec, and a network namespace changes no descriptor or memory that others share.
        unsafe { first.pre_exec(|| Ok(unshare_unsafe(UnshareFlags::NEWNET)?)) };
        Ok(Self(Running::spawn(first.arg("infinity").stdin(Stdio::null()))?))
    }

    /// Id of the process that keeps the namespace.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// A command for `program` that runs in the namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = process::program("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs `ip` with these arguments, separated by blanks, in the namespace.
    pub(crate) fn ip(&self, arguments: &str) -> Result<()> {
        process::output(self.command("ip").args(arguments.split(' '))).map(drop)
    }
}
