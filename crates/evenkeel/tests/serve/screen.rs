//! A test terminal for `evenkeel top`: the program `script` provides the terminal, and its output is read as a grid of
//! characters.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{EVENKEEL, Folder};
use super::skip::skip;

pub(crate) const WIDTH: usize = 80;
pub(crate) const HEIGHT: usize = 24;
/// Upper bound on the wait for any event; only a broken program takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes that a program has written up to now, and true for `ended` when there will be no more.
#[derive(Default)]
struct Written {
    raw: Vec<u8>,
    ended: bool,
}

/// A running `evenkeel top` in a terminal of 80 columns and 24 lines.
pub(crate) struct Screen {
    child: Child,
    keys: ChildStdin,
    written: Arc<(Mutex<Written>, Condvar)>,
}

impl Screen {
    /// Starts `evenkeel top` in `folder`. The folder gets these files: `pid` with the process id, `ended` with the exit status,
    /// and `before` and `after` with the terminal's settings. `None` if the program `script` is not installed.
    pub(crate) fn start(folder: &Folder, arguments: &str) -> Option<Self> {
        let inner = format!("echo $$ > pid; exec {EVENKEEL} top {arguments}");
        let commands = format!(
            "stty cols {WIDTH} rows {HEIGHT}; stty -g > before; sh -c '{inner}'; echo $? > ended; stty -g > after"
        );
        let mut command = Command::new("script");
        command.args(["-qfc", &commands, "/dev/null"]).current_dir(folder.path()).env("TERM", "xterm");
        command.env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR").stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip("script is not installed");
            return None;
        };
        let keys = child.stdin.take().expect("piped");
        let mut output = child.stdout.take().expect("piped");
        let written = Arc::new((Mutex::new(Written::default()), Condvar::new()));
        let told = Arc::clone(&written);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                let count = output.read(&mut bytes).unwrap_or(0);
                let mut written = told.0.lock().expect("not poisoned");
                written.raw.extend(&bytes[..count]);
                written.ended = count == 0;
                told.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Some(Self { child, keys, written })
    }

    /// Types these keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("typed");
    }

    /// Waits until `wanted` is true of the screen's text, and returns the text. `what`: the awaited event, for the panic.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        let mut written = self.written.0.lock().expect("not poisoned");
        loop {
            let screen = grid(&written.raw);
            if wanted(&screen) {
                return screen;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !written.ended, "never came: {what}\n{screen}");
            written = self.written.1.wait_timeout(written, left).expect("not poisoned").0;
        }
    }

    /// Waits until all of `words` are on the screen, and returns the screen's text.
    #[track_caller]
    pub(crate) fn until_words(&self, words: &[&str]) -> String {
        self.until(&words.join(", "), |screen| words.iter().all(|word| screen.contains(word)))
    }

    fn until_end(&self) {
        let written = self.written.0.lock().expect("not poisoned");
        drop(self.written.1.wait_while(written, |written| !written.ended).expect("not poisoned"));
    }

    /// Waits until `evenkeel top` has ended, and returns its exit status. Asserts that it has restored the terminal.
    #[track_caller]
    pub(crate) fn end(mut self, folder: &Folder) -> String {
        self.child.wait().expect("it ends");
        self.until_end();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|_| panic!("no {name}"));
        assert_eq!(read("before"), read("after"), "settings of the terminal");
        let written = self.written.0.lock().expect("not poisoned");
        let raw = String::from_utf8_lossy(&written.raw).into_owned();
        drop(written);
        for (on, off) in [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")] {
            let (on, off) = (raw.rfind(on).expect("used"), raw.rfind(off).expect("given back"));
            assert!(on < off, "the other screen, or the cursor");
        }
        read("ended").trim().to_owned()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text on the screen of a terminal that has received the bytes `raw`. Only the escape sequences that `evenkeel top` uses are
/// interpreted.
fn grid(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let mut cells = vec![[' '; WIDTH]; HEIGHT];
    let (mut x, mut y) = (0, 0);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => {
                if characters.next() != Some('[') {
                    continue;
                }
                let mut arguments = String::new();
                let end = loop {
                    match characters.next() {
                        Some(c) if c.is_ascii_alphabetic() => break c,
                        Some(c) => arguments.push(c),
                        None => break ' ',
                    }
                };
                match end {
                    'H' => {
                        let mut at =
                            arguments.split(';').map(|n| n.parse::<usize>().map_or(0, |n| n.saturating_sub(1)));
                        (y, x) = (at.next().unwrap_or(0), at.next().unwrap_or(0));
                    }
                    'J' => cells = vec![[' '; WIDTH]; HEIGHT],
                    _ => {}
                }
            }
            '\r' => x = 0,
            '\n' => y += 1,
            _ => {
                if let Some(cell) = cells.get_mut(y).and_then(|line| line.get_mut(x)) {
                    *cell = character;
                }
                x += 1;
            }
        }
    }
    cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
}
