//! A real browser: headless Chromium, driven over WebDriver.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref_testkit::{Scratch, TEST_TIMEOUT, eventually_blocking};
use serde_json::{Value, json};

/// Time between two looks at a page, because the browser has to lay it out for each.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is missing for a browser, if anything is.
pub(crate) fn missing() -> Option<String> {
    let runs = |program: &str| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|version| version.status.success())
    };
    let missing = ["chromium", "chromedriver"]
        .into_iter()
        .find(|program| !runs(program));
    missing.map(|program| format!("no {program}"))
}

/// The port that chromedriver says it has taken. What it says after that is read too, so that it can say it.
fn port_of(driver: &mut Child) -> anyhow::Result<u16> {
    let says = driver.stdout.take().context("its output")?;
    let mut lines = BufReader::new(says).lines();
    let port = loop {
        let line = lines.next().context("chromedriver ended")??;
        let said = line.strip_prefix("ChromeDriver was started successfully on port ");
        if let Some(port) = said {
            break port.trim_end_matches('.').parse()?;
        }
    };
    std::thread::spawn(move || lines.for_each(drop));
    Ok(port)
}

/// A browser with one page.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: Scratch,
}

impl Browser {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("chromedriver is missing: apt-get install chromium chromium-driver")?;
        let port = port_of(&mut driver)?;
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
            profile: Scratch::new()?,
        };
        eventually_blocking("chromedriver listens", || {
            Ok(browser.send("GET", "/status", None).is_ok())
        })?;
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &format!("--user-data-dir={}", browser.profile.path().display()),
        ]
        .map(str::to_owned);
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags, "binary": "/usr/bin/chromium"},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = browser.send("POST", "/session", Some(&wanted))?;
        let id = session["sessionId"].as_str().context("no session")?;
        browser.session = format!("/session/{id}");
        Ok(browser)
    }

    pub(crate) fn open(&self, url: &str) -> anyhow::Result<()> {
        self.ask("POST", "/url", &json!({"url": url}))?;
        Ok(())
    }

    /// What a function's body returns in the page.
    pub(crate) fn run(&self, script: &str, arguments: Value) -> anyhow::Result<Value> {
        self.ask(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": [arguments]}),
        )
    }

    /// The text that somebody sees in what the selector finds first.
    pub(crate) fn text(&self, selector: &str) -> anyhow::Result<String> {
        let script = "return document.querySelector(arguments[0])?.innerText ?? ''";
        let text = self.run(script, json!(selector))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    pub(crate) fn count(&self, selector: &str) -> anyhow::Result<u64> {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.run(script, json!(selector))?
            .as_u64()
            .context("no number")
    }

    /// As a person does: what is covered or not there cannot be clicked.
    pub(crate) fn click(&self, selector: &str) -> anyhow::Result<()> {
        let found = self.ask(
            "POST",
            "/element",
            &json!({"using": "css selector", "value": selector}),
        )?;
        let element = found.as_object().and_then(|found| found.values().next());
        let element = element.and_then(Value::as_str).context("no element")?;
        self.ask("POST", &format!("/element/{element}/click"), &json!({}))?;
        Ok(())
    }

    pub(crate) fn type_into(&self, selector: &str, text: &str) -> anyhow::Result<()> {
        let found = self.ask(
            "POST",
            "/element",
            &json!({"using": "css selector", "value": selector}),
        )?;
        let element = found.as_object().and_then(|found| found.values().next());
        let element = element.and_then(Value::as_str).context("no element")?;
        self.ask(
            "POST",
            &format!("/element/{element}/value"),
            &json!({"text": text}),
        )?;
        Ok(())
    }

    /// Waits until the text of an element is as wanted.
    pub(crate) fn wait(
        &self,
        selector: &str,
        what: &str,
        mut is_so: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<String> {
        let mut text = String::new();
        let awaited = eventually_blocking(what, || {
            text = self.text(selector)?;
            let is_so = is_so(&text);
            if !is_so {
                std::thread::sleep(POLL_INTERVAL);
            }
            Ok(is_so)
        });
        awaited.with_context(|| format!("there is:\n{text}"))?;
        Ok(text)
    }

    /// What the page has complained of: everything but what is only told.
    pub(crate) fn complaints(&self) -> anyhow::Result<Vec<String>> {
        let log = self.log("browser")?;
        let bad = log
            .iter()
            .filter(|entry| entry["level"] != "INFO" && entry["level"] != "DEBUG");
        Ok(bad.map(ToString::to_string).collect())
    }

    /// Every address that the page has asked for since this was last asked.
    pub(crate) fn requests(&self) -> anyhow::Result<Vec<String>> {
        let mut requests = Vec::new();
        for entry in self.log("performance")? {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap_or("{}"))?;
            if message["message"]["method"] == "Network.requestWillBeSent" {
                let url = &message["message"]["params"]["request"]["url"];
                requests.extend(url.as_str().map(str::to_owned));
            }
        }
        Ok(requests)
    }

    fn log(&self, kind: &str) -> anyhow::Result<Vec<Value>> {
        let log = self.ask("POST", "/se/log", &json!({"type": kind}))?;
        Ok(log.as_array().cloned().unwrap_or_default())
    }

    /// What somebody sees, as a PNG.
    pub(crate) fn picture(&self) -> anyhow::Result<Vec<u8>> {
        let picture = self.send("GET", &format!("{}/screenshot", self.session), None)?;
        decode(picture.as_str().context("no picture")?)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(method, &format!("{}{path}", self.session), Some(body))
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let body = body.map_or_else(String::new, ToString::to_string);
        let (status, answer) = http(self.port, method, path, &body)?;
        let mut answer: Value =
            serde_json::from_slice(&answer).with_context(|| format!("{method} {path}"))?;
        ensure!(
            status == 200,
            "{method} {path}: {}",
            answer["value"]["message"]
        );
        Ok(answer["value"].take())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.send("DELETE", &self.session, None);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// One request to a port of this machine: the status and the body of the answer.
pub(crate) fn http(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut heard = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        if let Some(answer) = whole(&heard)? {
            return Ok(answer);
        }
        match stream.read(&mut chunk)? {
            0 => bail!("it hung up in the middle of {method} {path}"),
            count => heard.extend_from_slice(&chunk[..count]),
        }
    }
}

/// The answer, if all of it has come.
fn whole(heard: &[u8]) -> anyhow::Result<Option<(u16, Vec<u8>)>> {
    let Some(end) = heard.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&heard[..end])?.to_ascii_lowercase();
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.context("no length")?.trim().parse()?;
    let body = &heard[end + 4..];
    Ok((body.len() >= length).then(|| (status, body[..length].to_vec())))
}

/// Base64.
fn decode(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = digits.iter().position(|digit| *digit == byte);
        bits = bits << 6 | digit.context("no base64")? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}
