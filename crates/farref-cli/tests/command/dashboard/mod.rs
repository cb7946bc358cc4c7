//! `farref dashboard` as a person meets it: a real Chromium clicks through the page, which shows a group of real processes
//! in which a worker is killed.
//!
//! Without Chromium (Debian's `chromium` and `chromium-driver`) the tests are left out, and say so;
//! `FARREF_REQUIRE_CHROMIUM=1` makes that a failure. `FARREF_DASHBOARD_PICTURES=docs/images` takes the pictures of the
//! documentation.

mod browser;
mod group;
mod large;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use farref_testkit::{Requirement, eventually_async, run_test};
use libtest_mimic::Trial;
use serde_json::Value;

use browser::{Browser, http};
use group::{EVIL, Group, LEAK, TOKEN};

pub(crate) use group::work_if_told;

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        in_browser,
        every_view_shows_what_is_there_and_a_worker_that_is_killed,
        the_page_is_for_nobody_else,
        a_group_that_is_gone_is_said_to_be,
        two_hundred_workers_are_drawn_and_can_be_used,
        the_tabs_can_be_reached_by_keys,
        nothing_is_rebuilt_under_the_hand,
    ]
}

/// Runs a test if there is a browser. One runs at a time, because a browser needs much memory.
fn in_browser<F: Future<Output = anyhow::Result<()>>>(test: fn() -> F) -> anyhow::Result<()> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match CHROMIUM.is_met(browser::missing().as_deref())? {
        true => run_test(test()),
        false => Ok(()),
    }
}

const CHROMIUM: Requirement = Requirement {
    needed: "Chromium (Debian: chromium, chromium-driver)",
    variable: "FARREF_REQUIRE_CHROMIUM",
};

/// The command, serving a page.
struct Dashboard {
    process: Child,
    url: String,
}

impl Dashboard {
    fn start(place: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_farref"))
            .args(["dashboard", place, "--interval", "0.5", "--limit", "5000"])
            .env("FARREF_TOKEN", TOKEN)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let out = process.stdout.take().context("no output")?;
        let mut dashboard = Self {
            process,
            url: String::new(),
        };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        dashboard.url = line.trim().to_owned();
        ensure!(dashboard.url.starts_with("http://127.0.0.1:"), "{line}");
        Ok(dashboard)
    }

    fn port(&self) -> anyhow::Result<u16> {
        let rest = self
            .url
            .strip_prefix("http://127.0.0.1:")
            .context("no port")?;
        Ok(rest.split('/').next().context("no port")?.parse()?)
    }

    /// What is under a name, as the page gets it.
    fn get(&self, name: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let path = self.url.splitn(4, '/').nth(3).context("no key")?;
        http(self.port()?, "GET", &format!("/{path}{name}"), "")
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Takes a picture for the documentation, if somebody wants one.
fn picture(browser: &Browser, name: &str) -> anyhow::Result<()> {
    if let Some(folder) = std::env::var_os("FARREF_DASHBOARD_PICTURES") {
        let path = std::path::Path::new(&folder).join(format!("dashboard-{name}.png"));
        std::fs::write(&path, browser.picture()?)?;
    }
    Ok(())
}

/// Chooses a view and waits for what it shows.
fn choose(
    browser: &Browser,
    view: &str,
    what: &str,
    is_so: impl FnMut(&str) -> bool,
) -> anyhow::Result<String> {
    browser.click(&format!("#tab-{view}"))?;
    browser.wait(&format!("#view[data-view={view}]"), what, is_so)
}

async fn every_view_shows_what_is_there_and_a_worker_that_is_killed() -> anyhow::Result<()> {
    let mut group = Group::start().await?;
    let dashboard = Dashboard::start(&group.place)?;
    let browser = Browser::start()?;
    browser.open(&dashboard.url)?;

    let all_alive = |text: &str| text.matches("alive").count() == 4;
    let workers = browser.wait("#view", "all workers are alive", all_alive)?;
    assert!(
        workers.contains("conductor") && workers.contains("victim"),
        "{workers}"
    );

    let row = browser.wait("#view", "a name is published", |text| {
        text.contains("shop/front")
    })?;
    let row = row.lines().find(|line| line.contains("shop/front"));
    let row = row.context("no name")?;
    for expected in ["conductor", "Chest", "keeper"] {
        assert!(row.contains(expected), "{expected} is not in: {row}");
    }

    // It is killed while the page looks on.
    group.kill("victim")?;
    let events = choose(&browser, "events", "the death is told", |text| {
        text.contains("died")
    })?;
    let death = events
        .lines()
        .find(|line| line.contains("died"))
        .context("no death")?;
    assert!(death.contains("victim"), "{death}");
    picture(&browser, "membership")?;
    choose(&browser, "workers", "the dead are listed", |text| {
        text.contains("dead")
    })?;
    picture(&browser, "workers")?;

    choose(&browser, "references", "there are references", |text| {
        text.contains("u64")
    })?;
    assert!(browser.count("#graph .node")? >= 3 && browser.count("#graph .edge")? >= 1);
    picture(&browser, "references")?;
    browser.type_into("#search", "Chest")?;
    let found = browser.wait("#view", "only what matches", |text| {
        text.contains("Chest") && !text.contains("u64")
    })?;
    assert!(found.contains("reference"), "{found}");

    let is_found = |text: &str| {
        let in_circle = text.matches("circle 1").count() >= 3;
        in_circle && text.lines().any(|line| line.starts_with("blocked"))
    };
    let calls = choose(&browser, "calls", "the circle is found", is_found)?;
    let blocked = calls
        .lines()
        .find(|line| line.starts_with("blocked"))
        .context("nothing is blocked")?;
    assert!(
        blocked.contains("shop::Chest::look") && blocked.contains("shop::Chest::hold"),
        "{blocked}"
    );
    assert!(calls.contains("calls running"), "{calls}");
    picture(&browser, "calls")?;

    let both = |text: &str| text.contains("shop::relay") && text.contains("shop::fail");
    let rates = choose(&browser, "rates", "functions are told apart", both)?;
    let failing = rates
        .lines()
        .find(|line| line.starts_with("shop::fail\t"))
        .context("no row")?;
    assert!(
        failing
            .split('\t')
            .nth(3)
            .is_some_and(|failed| failed != "0"),
        "{failing}"
    );
    // What would be a script is a text.
    assert!(rates.contains(EVIL), "{rates}");
    assert_eq!(browser.count("main script, main img")?, 0);
    assert!(browser.run("return window.harmed === undefined", Value::Null)? == true);
    browser.wait("#view", "there are curves", |_| {
        browser
            .count("#view svg path.curve")
            .is_ok_and(|count| count >= 4)
    })?;
    picture(&browser, "rates")?;

    let contexts = choose(&browser, "contexts", "a context is open", |text| {
        text.contains("conductor") && text.contains("keeper: passes")
    })?;
    assert!(contexts.contains("1 context open"), "{contexts}");
    assert!(
        contexts.contains("keeper: passes: 1, sent: 2"),
        "{contexts}"
    );
    picture(&browser, "contexts")?;

    let leaks = choose(&browser, "leaks", "a line grows", |text| {
        text.lines().any(|line| line.starts_with("grows"))
    })?;
    let leak = leaks
        .lines()
        .find(|line| line.starts_with("grows"))
        .context("no leak")?;
    assert!(leak.contains(LEAK), "{leak}");
    assert!(leaks.contains("u64"), "{leaks}");
    picture(&browser, "leaks")?;

    let timeline = choose(&browser, "timeline", "there are calls", |text| {
        text.contains("shop::relay")
    })?;
    assert!(timeline.contains("Download"), "{timeline}");
    browser.wait("#view", "they are drawn", |_| {
        browser
            .count("#lanes rect[data-function='shop::relay']")
            .is_ok_and(|count| count > 0)
    })?;
    picture(&browser, "timeline")?;
    the_export_has_the_calls(&browser, &dashboard)?;

    assert_eq!(browser.complaints()?, Vec::<String>::new());
    let elsewhere = |url: &String| {
        !url.starts_with(&dashboard.url) && !url.starts_with("data:") && !url.starts_with("chrome")
    };
    let elsewhere: Vec<String> = browser.requests()?.into_iter().filter(elsewhere).collect();
    assert_eq!(elsewhere, Vec::<String>::new());
    Ok(())
}

/// What the link leads to is a trace with the calls of a group, tied together.
fn the_export_has_the_calls(browser: &Browser, dashboard: &Dashboard) -> anyhow::Result<()> {
    let link = browser.run("return document.getElementById('export').href", Value::Null)?;
    assert_eq!(link, format!("{}trace.json", dashboard.url));
    let (status, trace) = dashboard.get("trace.json")?;
    assert_eq!(status, 200);
    let trace: Value = serde_json::from_slice(&trace)?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    let calls = events.iter().filter(|event| event["ph"] == "X");
    let spans: std::collections::BTreeMap<&str, &Value> = calls
        .filter_map(|event| Some((event["args"]["span"].as_str()?, event)))
        .collect();
    let nested = spans.values().find(|event| {
        let parent = event["args"]["parent"]
            .as_str()
            .and_then(|parent| spans.get(parent));
        event["name"] == "shop::number"
            && parent.is_some_and(|parent| parent["name"] == "shop::relay")
    });
    let nested = nested.context("no call that another one made")?;
    let parent = spans[nested["args"]["parent"].as_str().context("no parent")?];
    assert_eq!(nested["args"]["trace"], parent["args"]["trace"]);
    assert_ne!(nested["pid"], parent["pid"]);
    assert!(
        events
            .iter()
            .any(|event| event["ph"] == "M" && event["args"]["name"] == "keeper")
    );
    Ok(())
}

async fn the_page_is_for_nobody_else() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let dashboard = Dashboard::start(&group.place)?;
    let port = dashboard.port()?;
    assert_eq!(dashboard.get("")?.0, 200);
    assert_eq!(http(port, "GET", "/", "")?.0, 404);
    assert_eq!(http(port, "GET", "/data?view=workers", "")?.0, 404);
    // A page of somebody else's, at another origin, in the same browser.
    let browser = Browser::start()?;
    browser.open(&dashboard.url.replace("127.0.0.1", "localhost"))?;
    browser.wait("#summary", "both names lead here", |text| {
        text.contains("worker")
    })?;
    let script = "const answer = await fetch(arguments[0]).then((one) => one.text(), () => 'refused'); return answer";
    let answer = browser.run(
        script,
        Value::from(format!("{}data?view=workers", dashboard.url)),
    )?;
    assert_eq!(answer, "refused");
    Ok(())
}

async fn a_group_that_is_gone_is_said_to_be() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let dashboard = Dashboard::start(&group.place)?;
    let browser = Browser::start()?;
    browser.open(&dashboard.url)?;
    browser.wait("#view", "the group is shown", |text| {
        text.contains("conductor")
    })?;
    browser.wait("#banner", "all is well", str::is_empty)?;
    drop(group);
    browser.wait("#banner", "it is gone", |text| {
        text.contains("cannot be seen")
    })?;
    // Its last state can still be read.
    assert!(browser.text("#view")?.contains("conductor"));
    drop(dashboard);
    browser.wait("#banner", "nobody serves the page", |text| {
        text.contains("does not answer")
    })?;
    Ok(())
}

async fn two_hundred_workers_are_drawn_and_can_be_used() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let dashboard = Dashboard::start(&group.place)?;
    let browser = Browser::start()?;
    browser.open(&dashboard.url)?;
    browser.wait("#view", "the page is there", |text| {
        text.contains("conductor")
    })?;
    browser.run(large::FEED, large::group(200))?;
    for view in large::VIEWS {
        choose(&browser, view, "it is drawn", |text| !text.is_empty())?;
        let nodes = browser.count("#view *")?;
        assert!((20..20_000).contains(&nodes), "{view} has {nodes} elements");
    }
    choose(&browser, "workers", "all are listed", |text| {
        text.contains("worker199")
    })?;
    choose(
        &browser,
        "references",
        "the graph says what it leaves out",
        |text| text.contains("36 of 200"),
    )?;
    assert_eq!(browser.count("#graph .node")?, 36);
    assert_eq!(browser.complaints()?, Vec::<String>::new());
    Ok(())
}

async fn the_tabs_can_be_reached_by_keys() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let dashboard = Dashboard::start(&group.place)?;
    let browser = Browser::start()?;
    browser.open(&dashboard.url)?;
    browser.wait("#view", "the page is there", |text| {
        text.contains("conductor")
    })?;
    // The arrow to the right, as WebDriver writes it.
    browser.type_into("#tab-workers", "\u{e014}")?;
    browser.wait("#view[data-view=references]", "the next view", |text| {
        !text.is_empty()
    })?;
    let focused = browser.run("return document.activeElement.id", Value::Null)?;
    assert_eq!(focused, "tab-references");
    let selected = "[role=tab][aria-selected=true]";
    eventually_async("one tab is selected", async || {
        Ok(browser.count(selected)? == 1)
    })
    .await
}

async fn nothing_is_rebuilt_under_the_hand() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let dashboard = Dashboard::start(&group.place)?;
    let browser = Browser::start()?;
    browser.open(&dashboard.url)?;
    browser.wait("#view", "the page is there", |text| {
        text.contains("conductor")
    })?;
    // A table that is scrolled by keys keeps them, though it is drawn anew.
    let script = "window.table = document.querySelector('#view .scroll'); window.table.focus(); \
                  return document.activeElement === window.table";
    assert_eq!(browser.run(script, Value::Null)?, true);
    let is_another = "const focus = document.activeElement; \
                      return focus !== window.table && focus.matches('#view .scroll')";
    browser.wait("#view", "it is drawn anew", |_| {
        browser
            .run(is_another, Value::Null)
            .is_ok_and(|said| said == true)
    })?;
    // Text that is selected stays, until it is not any more.
    let script = "window.table = document.querySelector('#view table'); \
                  document.getSelection().selectAllChildren(window.table)";
    browser.run(script, Value::Null)?;
    browser.wait("#summary", "it says that it waits", |text| {
        text.contains("waits while text is selected")
    })?;
    let stays = "return document.querySelector('#view table') === window.table";
    assert_eq!(browser.run(stays, Value::Null)?, true);
    browser.run("document.getSelection().removeAllRanges()", Value::Null)?;
    browser.wait("#view", "it goes on", |_| {
        browser
            .run(stays, Value::Null)
            .is_ok_and(|said| said == false)
    })?;
    Ok(())
}
