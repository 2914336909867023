//! A headless Chromium, and the few words of its DevTools protocol that the tests need
//! (<https://chromedevtools.github.io/devtools-protocol/>): JSON objects, each ended by a NUL byte, over
//! descriptors 3 (to the browser) and 4 (from it).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test harness fails by panicking"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for one answer: starting a browser on a busy machine takes a while.
const LIMIT: Duration = Duration::from_secs(45);
const NAMES: [&str; 2] = ["chromium", "chromium-browser"];
const FLAGS: [&str; 14] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    // Every name, also of the browser's own services, leads nowhere.
    "--host-resolver-rules=MAP * ~NOTFOUND",
];
/// Standard Rust gives a child no descriptors beyond 2; a shell moves the pipes to where they belong.
const MOVE_PIPES: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// How the page is looked at.
pub struct Screen {
    /// CSS pixels.
    pub width: u32,
    /// CSS pixels.
    pub height: u32,
    /// What the reader's system prefers.
    pub dark: bool,
}

/// A running browser with one page. It ends when it is dropped.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser; `None` where none is installed.
    pub fn start() -> Option<Self> {
        let paths = std::env::var_os("PATH")?;
        let program = std::env::split_paths(&paths)
            .flat_map(|directory| NAMES.map(|name| directory.join(name)))
            .find(|path| path.is_file())?;
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", MOVE_PIPES])
            .arg(program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            // What it keeps beside its profile goes with the profile.
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // A group of its own, so that its helper processes end with it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            session: None,
            last_id: 0,
            events: Vec::new(),
            _profile: profile,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.ask("Target.createTarget", json!({"url": "about:blank"}));
        let session = self.ask(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Network.enable", "Runtime.enable"] {
            self.ask(domain, json!({}));
        }
    }

    /// Asks and waits for the answer; events that come before it are kept.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let answer = self.next(method);
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn next(&mut self, what: &str) -> Value {
        self.from
            .recv_timeout(LIMIT)
            .unwrap_or_else(|error| panic!("the browser does not answer to {what}: {error}"))
    }

    fn wait_for(&mut self, event: &str) {
        while !self.events.iter().any(|one| one["method"] == event) {
            let next = self.next(event);
            self.events.push(next);
        }
    }

    /// Loads a file as a reader with this screen sees it.
    pub fn show(&mut self, file: &Path, screen: &Screen) {
        let metrics = json!({
            "width": screen.width, "height": screen.height, "deviceScaleFactor": 1,
            "mobile": screen.width < 600,
        });
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if screen.dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", features);
        self.events.clear();
        let url = format!("file://{}", file.to_str().unwrap());
        let loaded = self.ask("Page.navigate", json!({"url": url}));
        assert!(loaded["errorText"].is_null(), "{loaded}");
        self.wait_for("Page.loadEventFired");
    }

    /// The value of a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.ask(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true}),
        );
        assert!(answer["exceptionDetails"].is_null(), "{answer:#}");
        answer["result"]["value"].clone()
    }

    /// Clicks in the middle of an element with the mouse.
    pub fn click(&mut self, selector: &str) {
        let place = self.evaluate(&format!(
            "(() => {{ const one = document.querySelector('{selector}'); one.scrollIntoView(); \
             const box = one.getBoundingClientRect(); \
             return [box.left + box.width / 2, box.top + box.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            self.ask(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1}),
            );
        }
    }

    /// Writes a picture of the whole page.
    pub fn screenshot(&mut self, to: &Path) {
        let whole = json!({"format": "png", "captureBeyondViewport": true});
        let mut parameters = whole;
        let size = self.ask("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        parameters["clip"] = json!({
            "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1,
        });
        let picture = self.ask("Page.captureScreenshot", parameters);
        std::fs::write(to, base64(picture["data"].as_str().unwrap())).unwrap();
    }

    /// Every address that the last page asked for.
    pub fn requests(&self) -> Vec<String> {
        self.events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent")
            .map(|event| {
                event["params"]["request"]["url"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            // One that has ended already has nothing left to be ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Bytes of a text in RFC 4648's base 64.
fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for six in text.bytes().filter_map(value) {
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
}
