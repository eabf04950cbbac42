//! Load over TLS: certificates of the moment, and `nbdcopy`, which both servers are read with.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::MEMORY_BYTES;
use super::load::Job;
use crate::process;
use crate::servers::{Address, EXPORT};

/// What `nbdcopy` asks for at once, and how much of it.
const REQUESTS: u32 = 8;
const REQUEST_BYTES: u64 = 128 << 10;

const OPENSSL: &str = "\
[req]\ndistinguished_name = dn\nprompt = no\n[dn]\nCN = evenkeel\n\
[authority]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\n\
[server]\nsubjectAltName = DNS:localhost,IP:127.0.0.1\nextendedKeyUsage = serverAuth\n\
[client]\nextendedKeyUsage = clientAuth\n";

/// Makes an authority, a server's and a client's certificate in `folder`, named as clients and nbdkit want them.
///
/// # Errors
/// When the folder cannot be written to, or `openssl` fails.
pub(crate) fn certificates(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("openssl.cnf"), OPENSSL)?;
    let openssl = |words: String| {
        let mut command = process::program("openssl");
        command.args(words.split_whitespace()).current_dir(folder);
        process::output(&mut command).with_context(|| format!("openssl {words}"))
    };
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf";
    openssl(format!("req -x509 {new} -extensions authority -days 2 -keyout ca-key.pem -out ca-cert.pem"))?;
    for name in ["server", "client"] {
        openssl(format!("req -new {new} -subj /CN={name} -keyout {name}-key.pem -out {name}.csr"))?;
        openssl(format!(
            "x509 -req -in {name}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
             -extfile openssl.cnf -extensions {name} -out {name}-cert.pem"
        ))?;
    }
    Ok(())
}

/// Reads the whole export again and again for so long, each time on a new connection.
///
/// # Errors
/// When the server is not reached by TCP, or `nbdcopy` fails.
pub(super) fn copy(address: &Address, certificates: &Path, seconds: u32) -> Result<Job> {
    let Address::Tcp(port) = address else { anyhow::bail!("TLS is measured over TCP") };
    let uri = format!("nbds://localhost:{port}/{EXPORT}?tls-certificates={}", certificates.display());
    let begun = Instant::now();
    let mut copied = 0;
    while begun.elapsed() < Duration::from_secs(seconds.into()) {
        let mut nbdcopy: Command = process::program("nbdcopy");
        nbdcopy.args(["--connections=1", "--no-extents"]).arg(format!("--requests={REQUESTS}"));
        nbdcopy.arg(format!("--request-size={REQUEST_BYTES}")).args([&uri, "null:"]);
        process::output(&mut nbdcopy)?;
        copied += MEMORY_BYTES;
    }
    let bytes_per_s = copied as f64 / begun.elapsed().as_secs_f64();
    Ok(Job {
        requests: copied as f64 / REQUEST_BYTES as f64,
        iops: bytes_per_s / REQUEST_BYTES as f64,
        bytes_per_s,
        // It tells no times.
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        clean: true,
    })
}
