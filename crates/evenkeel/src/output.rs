//! Standard output that may be a closed pipe.

use std::io::{self, Write};

/// Prints `text`. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
