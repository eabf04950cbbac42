//! A headless browser, driven through its DevTools protocol.
//!
//! The protocol runs over two pipes (`--remote-debugging-pipe`) instead of a WebSocket: JSON messages, each followed by
//! a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD as BASE64, Engine as _};
use serde_json::{Value, json};

use crate::base::process::{self, Running};

/// Longest wait for an answer of the browser. Answers take milliseconds, but a browser may start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval at which the condition of [`Browser::wait_for`] is evaluated.
const PAUSE: Duration = Duration::from_millis(100);

/// A browser with one open page.
pub(super) struct Browser {
    to: Box<dyn Write + Send>,
    messages: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// Messages since the start: errors in the console, exceptions of scripts, violations of the content security policy.
    pub(super) complaints: Vec<String>,
    /// Addresses that the browser has requested since its start.
    pub(super) requests: Vec<String>,
    /// The browser's process, killed on drop.
    _process: Running,
}

impl Browser {
    /// Starts the browser with its profile and its log in `folder`.
    pub(super) fn start(program: &Path, folder: &Path) -> Result<Self> {
        let log = std::fs::File::create(folder.join("browser.log"))?;
        let mut command = Command::new("sh");
        // It reads from descriptor 3 and writes to 4.
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh"]).arg(program);
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ]);
        command.args(["--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display())).arg("about:blank");
        let mut process = Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log))?;
        let to = Box::new(process.take_stdin()?);
        let from = BufReader::new(process.take_stdout()?);
        let (told, messages) = channel();
        thread::spawn(move || {
            for message in from.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if told.send(message).is_err() {
                    return;
                }
            }
        });
        let (complaints, requests) = (Vec::new(), Vec::new());
        let mut browser = Self { to, messages, next: 0, session: None, complaints, requests, _process: process };
        browser.attach()?;
        Ok(browser)
    }

    fn attach(&mut self) -> Result<()> {
        // It may answer before it has opened its first page.
        let begun = Instant::now();
        let page = loop {
            let targets = self.call("Target.getTargets", json!({}))?;
            let mut targets = targets["targetInfos"].as_array().into_iter().flatten();
            if let Some(page) = targets.find(|target| target["type"] == "page") {
                break page["targetId"].clone();
            }
            ensure!(begun.elapsed() < PATIENCE, "the browser has no page");
            thread::sleep(Duration::from_millis(50));
        };
        let attached = self.call("Target.attachToTarget", json!({"targetId": page, "flatten": true}))?;
        self.session = Some(attached["sessionId"].as_str().context("the browser named no session")?.to_owned());
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(())
    }

    /// Calls a method of the protocol and returns the method's result.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.to.write_all(&text).with_context(|| format!("{method}: the browser has gone; see browser.log"))?;
        self.to.flush()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut message = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => bail!("{method}: no answer within {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("{method}: the browser has gone; see browser.log"),
            };
            if message["id"] != id {
                self.hear(&message);
                continue;
            }
            ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
            return Ok(message["result"].take());
        }
    }

    /// Handles an event: a message that is not the answer to a call.
    fn hear(&mut self, message: &Value) {
        let params = &message["params"];
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => self.requests.push(text(&params["request"]["url"])),
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(text(&params["exceptionDetails"]["exception"]["description"]));
            }
            Some("Runtime.consoleAPICalled") if matches!(params["type"].as_str(), Some("error" | "warning")) => {
                self.complaints.push(params["args"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] != "verbose" && params["entry"]["level"] != "info" => {
                self.complaints.push(text(&params["entry"]["text"]));
            }
            _ => {}
        }
    }

    /// Opens an address. The page is loaded anew even if the address differs only in the part after `#`.
    pub(super) fn open(&mut self, address: &str) -> Result<()> {
        self.call("Page.navigate", json!({"url": "about:blank"}))?;
        let gone = self.call("Page.navigate", json!({"url": address}))?;
        ensure!(gone["errorText"].is_null(), "{address}: {}", gone["errorText"]);
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'").map(drop)
    }

    /// The value of a JavaScript expression in the page. If the value is a promise, its result is awaited.
    pub(super) fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params)?;
        let exception = &answer["exceptionDetails"];
        ensure!(exception.is_null(), "{expression}: {}", exception["exception"]["description"]);
        Ok(answer["result"]["value"].take())
    }

    /// The value of a JavaScript expression in the page, as text.
    pub(super) fn text(&mut self, expression: &str) -> Result<String> {
        let value = self.value(expression)?;
        Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Waits until the JavaScript expression `condition` is true in the page. Returns the time waited.
    pub(super) fn wait_for(&mut self, condition: &str) -> Result<Duration> {
        // Between two pages there is none to ask.
        process::until(condition, [PATIENCE, PAUSE], || Ok(self.value(condition).is_ok_and(|value| value == true)))
    }

    /// Presses and releases a key.
    pub(super) fn press(&mut self, key: &str) -> Result<()> {
        // What the browser itself does with a key goes by its number.
        let number = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            _ => 0,
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": number});
        if key.chars().count() == 1 {
            event["text"] = json!(key);
        }
        self.call("Input.dispatchKeyEvent", event)?;
        let event = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": number});
        self.call("Input.dispatchKeyEvent", event).map(drop)
    }

    /// Sets the size of the window, in pixels.
    pub(super) fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Emulates media features that the system prefers, such as a dark colour scheme.
    pub(super) fn prefer(&mut self, features: &[(&str, &str)]) -> Result<()> {
        let features: Vec<Value> = features.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).map(drop)
    }

    /// Writes a screenshot of the window to `path`.
    pub(super) fn picture(&mut self, path: &Path) -> Result<()> {
        let data = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        let bytes =
            BASE64.decode(data["data"].as_str().context("no picture")?).context("a picture that is not base64")?;
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}
