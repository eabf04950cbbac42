//! Reads lines of bounded length.

use std::io::{self, BufRead, ErrorKind};

use super::MAX_LINE_BYTES;

/// The result of reading a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A whole line was read; the buffer holds the line without its line end.
    Whole,
    /// The line was too long, so its rest was skipped; the buffer holds the line's start.
    TooLong,
    /// The file has no further line.
    End,
}

/// The text of a line, without surrounding blanks and the byte order mark that some programs write at the start of a file.
pub(super) fn text(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii()
}

/// Reads the next line into `line`, at most [`MAX_LINE_BYTES`] bytes. The last line of the file needs no line end.
pub(super) fn read(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    let mut length = 0usize;
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() && length == 0 {
            return Ok(Line::End);
        }
        let newline = chunk.iter().position(|&byte| byte == b'\n');
        let part = &chunk[..newline.unwrap_or(chunk.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE_BYTES - line.len())]);
        let ends = newline.is_some() || chunk.is_empty();
        // An empty line has a length too: the newline counts.
        let used = part.len() + usize::from(newline.is_some());
        length = length.saturating_add(used);
        input.consume(used);
        if ends {
            let content = length - usize::from(newline.is_some());
            return Ok(if content > MAX_LINE_BYTES { Line::TooLong } else { Line::Whole });
        }
    }
}
