//! The kernel's NVMe target over TCP: reads ports, subsystems and namespaces from configfs, and connected hosts from debugfs
//! (since Linux 6.11, with `CONFIG_NVME_TARGET_DEBUGFS`).
//!
//! ```text
//! nvmet/ports/1/{addr_trtype, addr_traddr, addr_trsvcid, subsystems/NQN}
//! nvmet/subsystems/NQN/namespaces/1/{device_path, enable}
//! debug/nvmet/NQN/ctrl1/{hostnqn, host_traddr}            one for each host that is connected
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::lio;
use super::roots::{self, Roots};
use crate::error::Error;

/// A subsystem of the kernel's NVMe target that is reachable over TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subsystem {
    /// NVMe qualified name (NQN) of the subsystem or host.
    pub name: String,
    /// Addresses and ports at which the subsystem is reachable.
    pub portals: Vec<SocketAddr>,
    /// Enabled namespaces: number, and path of the block device or file.
    pub namespaces: Vec<(String, PathBuf)>,
    /// Hosts that are connected to the subsystem, as far as the kernel shows them.
    pub hosts: Vec<Host>,
}

/// A host that is connected to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// NVMe qualified name (NQN) of the subsystem or host.
    pub name: String,
    /// Address from which the host is connected, if the kernel shows it.
    pub address: Option<IpAddr>,
}

/// Reads all subsystems with a port of type TCP; empty if the kernel's NVMe target is not loaded.
///
/// # Errors
/// If a file or folder that exists cannot be read.
pub fn read(roots: &Roots) -> Result<Vec<Subsystem>, Error> {
    let root = roots.configfs().join("nvmet");
    let mut subsystems: Vec<Subsystem> = Vec::new();
    for port in roots::names(&root.join("ports"))? {
        let port = root.join("ports").join(port);
        let value = |name: &str| Ok::<_, Error>(roots::value(&port.join(name))?.unwrap_or_default());
        if value("addr_trtype")? != "tcp" {
            continue;
        }
        let (address, service) = (lio::address(&value("addr_traddr")?), value("addr_trsvcid")?.parse().ok());
        let Some(portal) = address.zip(service).map(|(address, service)| SocketAddr::new(address, service)) else {
            continue;
        };
        for name in roots::names(&port.join("subsystems"))? {
            match subsystems.iter_mut().find(|subsystem| subsystem.name == name) {
                Some(known) => known.portals.push(portal),
                None => subsystems.push(Subsystem { name, portals: vec![portal], ..Subsystem::default() }),
            }
        }
    }
    for subsystem in &mut subsystems {
        subsystem.hosts = hosts(&roots.sys.join("kernel/debug/nvmet").join(&subsystem.name));
        let folder = root.join("subsystems").join(&subsystem.name).join("namespaces");
        for number in roots::names(&folder)? {
            let namespace = folder.join(&number);
            let enabled = roots::value(&namespace.join("enable"))?.as_deref() == Some("1");
            let path = roots::value(&namespace.join("device_path"))?.filter(|path| path.starts_with('/'));
            if let Some(path) = path.filter(|_| enabled) {
                subsystem.namespaces.push((number, path.into()));
            }
        }
    }
    Ok(subsystems)
}

/// Connected hosts in `folder`, a subsystem's folder in debugfs; empty if the kernel shows none. A controller that ends
/// during the call is left out.
fn hosts(folder: &Path) -> Vec<Host> {
    let controllers = roots::names(folder).unwrap_or_default();
    let host = |controller: &String| {
        let value = |name: &str| roots::value(&folder.join(controller).join(name)).ok().flatten();
        let name = value("hostnqn").filter(|name| !name.is_empty())?;
        Some(Host { name, address: value("host_traddr").and_then(|address| lio::address(&address)) })
    };
    controllers.iter().filter(|name| name.starts_with("ctrl")).filter_map(host).collect()
}
