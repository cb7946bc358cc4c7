//! `farref inspect` and `farref top` as processes of their own, looking at workers of this one.

use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use farref::{RRef, StoreServer, Worker, WorkerBuilder};
use farref_testkit::eventually_async;
use libtest_mimic::Trial;
use serde_json::Value;
use tokio::sync::Mutex;

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        crate::asynchronous,
        the_tables_show_workers_calls_and_references_in_80_columns,
        a_call_that_waits_for_a_value_is_shown_with_what_it_waits_for,
        names_are_shown_with_their_version_and_type,
        a_filter_tells_who_keeps_a_value_alive_and_since_which_line,
        json_has_the_documented_fields,
        only_who_has_the_token_sees_anything_and_nobody_sees_the_token,
        what_cannot_be_looked_at_is_one_clear_line,
        a_worker_that_died_is_told_apart_from_those_that_live,
        top_without_a_terminal_says_what_to_use_instead,
    ]
}

/// Runs the command, with no token but the one given, 80 columns wide.
async fn farref(arguments: &[&str], token: Option<&str>) -> anyhow::Result<Seen> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
    command
        .args(arguments)
        .env_remove("FARREF_TOKEN")
        .env("COLUMNS", "80")
        .stdin(Stdio::null());
    if let Some(token) = token {
        command.env("FARREF_TOKEN", token);
    }
    // The workers that it looks at need this thread.
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Seen::new(output)
}

/// What a command printed.
struct Seen {
    code: i32,
    out: String,
    error: String,
}

impl Seen {
    fn new(output: Output) -> anyhow::Result<Self> {
        Ok(Self {
            code: output.status.code().context("it was killed")?,
            out: String::from_utf8(output.stdout)?,
            error: String::from_utf8(output.stderr)?,
        })
    }

    /// All went well.
    fn text(self) -> anyhow::Result<String> {
        ensure!(self.code == 0 && self.error.is_empty(), "{}", self.error);
        Ok(self.out)
    }

    /// One line that says what is wrong.
    fn failure(self) -> anyhow::Result<String> {
        ensure!(self.code != 0, "it says that all is well: {}", self.out);
        ensure!(self.out.is_empty(), "not only an error: {}", self.out);
        ensure!(self.error.lines().count() == 1, "{}", self.error);
        ensure!(self.error.starts_with("farref: "), "{}", self.error);
        Ok(self.error)
    }
}

fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "wider than 80 columns: {line}");
    }
}

/// Two workers in this process and the store that they met at.
struct Group {
    _store: StoreServer,
    place: String,
    owner: Worker,
    user: Worker,
}

impl Group {
    async fn start(change: impl Fn(WorkerBuilder) -> WorkerBuilder) -> anyhow::Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let place = store.local_addr().to_string();
        let worker = |name, rank| {
            let builder = Worker::builder(name)
                .rank(rank)
                .world_size(2)
                .rendezvous(&format!("tcp://{place}"))
                .store_is_hosted_elsewhere()
                .fail_on_leaks(true);
            change(builder).join()
        };
        let (owner, user) = tokio::try_join!(worker("owner", 0), worker("user", 1))?;
        Ok(Self {
            _store: store,
            place,
            owner,
            user,
        })
    }

    /// Nothing may be left behind.
    async fn finish(self) -> anyhow::Result<()> {
        tokio::try_join!(self.owner.shutdown(), self.user.shutdown())?;
        Ok(())
    }
}

/// A value that both workers hold: made by one, handed back by the other.
async fn shared(group: &Group) -> anyhow::Result<RRef<String>> {
    let text = write::on(&group.user.peer("owner")?, "kept".to_owned()).remote();
    text.confirmed().await?;
    Ok(text)
}

#[farref::remote]
async fn write(text: String) -> String {
    text
}

/// Functions that run until the test lets them end.
static GATE: Mutex<()> = Mutex::const_new(());

#[farref::remote(name = "inspect::wait_at_the_gate")]
async fn wait() {
    drop(GATE.lock().await);
}

async fn the_tables_show_workers_calls_and_references_in_80_columns() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder).await?;
    let text = shared(&group).await?;
    let closed = GATE.lock().await;
    let waiting = wait::on(&group.user.peer("owner")?).start();
    let there = group.user.peer("owner")?;
    eventually_async("the call runs", async || {
        let running = there.snapshot().await?.running;
        Ok(running.iter().any(|call| call.function.contains("gate")))
    })
    .await?;

    let address = group.place.clone();
    let seen = farref(&["inspect", &address], None).await?.text()?;
    assert_fits(&seen);
    for expected in [
        "owner",
        "user",
        "alive",
        "inspect::wait_at_the_gate",
        "String",
    ] {
        assert!(seen.contains(expected), "{expected} is not in\n{seen}");
    }
    let line = "command/inspect.rs:";
    let reference = seen
        .lines()
        .find(|row| row.contains(line))
        .context("no line")?;
    assert!(
        reference.contains("user"),
        "the holder is not in: {reference}"
    );

    for more in [
        &["--links"][..],
        &["--references"],
        &["--by", "holder"],
        &["--full"],
    ] {
        let arguments = [&["inspect", &address], more].concat();
        let seen = farref(&arguments, None).await?.text()?;
        assert!(more == ["--full"] || seen.lines().all(|row| row.chars().count() <= 80));
    }
    drop(closed);
    waiting.await?;
    drop(text);
    group.finish().await
}

/// A value that one call keeps to itself until the test lets it go.
struct Shelf;

static HELD: Mutex<()> = Mutex::const_new(());

#[farref::remote(name = "inspect::Shelf")]
impl Shelf {
    pub(crate) async fn new() -> Self {
        Self
    }

    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "it has the value to itself"
    )]
    pub(crate) async fn keep(&mut self) {
        drop(HELD.lock().await);
    }

    pub(crate) async fn look(&self) {}
}

async fn a_call_that_waits_for_a_value_is_shown_with_what_it_waits_for() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder).await?;
    let held = HELD.lock().await;
    let there = group.user.peer("owner")?;
    let shelf = Shelf::new_on(&there).remote();
    let keep = shelf.keep().start();
    let look = shelf.look().start();
    // Until it stands in the queue behind the other one.
    eventually_async("the call waits", async || {
        let waiting = there.snapshot().await?.waiting;
        Ok(waiting.iter().any(|call| !call.used_by.is_empty()))
    })
    .await?;

    let seen = farref(&["inspect", &group.place], None).await?.text()?;
    assert_fits(&seen);
    let (running, waiting) = seen
        .split_once("1 call waits to run")
        .with_context(|| format!("nothing waits:\n{seen}"))?;
    assert!(
        running.contains("Shelf::keep") && !running.contains("look"),
        "{seen}"
    );
    let row = waiting.lines().find(|row| row.contains("look"));
    let row = row.with_context(|| format!("who waits?\n{seen}"))?;
    for expected in ["owner", "user", "its turn", "keep"] {
        assert!(row.contains(expected), "{expected} is not in: {row}");
    }
    let json = farref(&["inspect", &group.place, "--json"], None)
        .await?
        .text()?;
    let json: Value = serde_json::from_str(&json)?;
    let call = &json["workers"][0]["snapshot"]["waiting"][0];
    assert_eq!(call["function"], "inspect::Shelf::look");
    assert_eq!(call["waits_for"], "turn");
    assert_eq!(call["value"], shelf.id()?);

    drop(held);
    keep.await?;
    look.await?;
    drop(shelf);
    group.finish().await
}

async fn names_are_shown_with_their_version_and_type() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder).await?;
    let seen = farref(&["inspect", &group.place], None).await?.text()?;
    assert!(!seen.contains("published"), "{seen}");
    let number = group.owner.rref(7_u64)?;
    group.owner.publish("number", &number)?;
    let version = group.owner.publish("number", &number)?;

    let seen = farref(&["inspect", &group.place], None).await?.text()?;
    assert_fits(&seen);
    let (_, names) = seen
        .split_once("1 name published")
        .with_context(|| format!("no names:\n{seen}"))?;
    let row = names.lines().find(|row| row.contains("number"));
    let row: Vec<_> = row.context("no row")?.split_whitespace().collect();
    let version = version.number();
    assert_eq!(
        row,
        ["number", "owner", &version.to_string(), "u64", "owner"]
    );
    let json = farref(&["inspect", &group.place, "--json"], None)
        .await?
        .text()?;
    let json: Value = serde_json::from_str(&json)?;
    let snapshot = &json["workers"][0]["snapshot"];
    assert_eq!(snapshot["names_in_all"], 1);
    assert_eq!(snapshot["names"][0]["version"], version);
    assert_eq!(snapshot["names"][0]["value"], number.id()?);
    drop(number);
    group.finish().await
}

async fn a_filter_tells_who_keeps_a_value_alive_and_since_which_line() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder).await?;
    let text = shared(&group).await?;
    let id = text.id()?;
    // As it is shown.
    let short = id.split('#').next().context("an empty id")?.to_owned();
    let here = group.owner.rref(7_u64)?;

    for filter in [&*id, "string", "command/inspect.rs", "user"] {
        let seen = farref(&["inspect", &group.place, "--filter", filter], None).await?;
        let seen = seen.text()?;
        assert_fits(&seen);
        let row = seen
            .lines()
            .find(|row| row.trim_start().starts_with(&short))
            .context("not found")?;
        for expected in ["String", "owner", "user", "inspect.rs:"] {
            assert!(row.contains(expected), "{expected} is not in: {row}");
        }
    }
    let seen = farref(&["inspect", &group.place, "--filter", "u64"], None).await?;
    let seen = seen.text()?;
    assert!(
        seen.contains("1 of 2 references") && !seen.contains("String"),
        "{seen}"
    );
    let seen = farref(&["inspect", &group.place, "--filter", "no such"], None).await?;
    assert!(seen.text()?.starts_with("none of 2 references matches"));
    drop((text, here));
    group.finish().await
}

async fn json_has_the_documented_fields() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder).await?;
    let text = shared(&group).await?;
    let seen = farref(&["inspect", &group.place, "--json"], None)
        .await?
        .text()?;
    let seen: Value = serde_json::from_str(&seen)?;

    assert_eq!(seen["address"], group.place.as_str());
    let workers = seen["workers"].as_array().context("no workers")?;
    assert_eq!(workers.len(), 2);
    assert_eq!(
        (&workers[1]["name"], &workers[1]["rank"]),
        (&"user".into(), &1.into())
    );
    assert_eq!(
        (&workers[1]["state"], &workers[1]["error"]),
        (&"alive".into(), &Value::Null)
    );
    let snapshot = &workers[1]["snapshot"];
    for field in [
        "uptime_seconds",
        "open_calls",
        "references",
        "contexts",
        "blocking_queue",
        "incarnation",
    ] {
        assert!(snapshot[field].is_number(), "{field}: {snapshot}");
    }
    assert_eq!(snapshot["totals"]["references_created"], 1);
    assert!(snapshot["peers"][0]["queued_bytes"].is_number());
    let reference = &seen["references"][0];
    assert_eq!(
        (&reference["id"], &reference["owner"]),
        (&text.id()?.into(), &"owner".into())
    );
    let holder = &reference["holders"][0];
    assert_eq!(holder["worker"], "user");
    assert!(
        holder["line"]
            .as_str()
            .is_some_and(|line| line.contains("inspect.rs"))
    );
    assert!(holder["seconds"].is_number());
    drop(text);
    group.finish().await
}

async fn only_who_has_the_token_sees_anything_and_nobody_sees_the_token() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder.token("only-we-know")).await?;
    let seen = farref(&["inspect", &group.place], Some("only-we-know")).await?;
    assert!(seen.text()?.contains("alive"));
    let option = ["inspect", &group.place, "--token", "only-we-know"];
    assert!(
        farref(&option, Some("wrong"))
            .await?
            .text()?
            .contains("alive")
    );

    for wrong in [None, Some("guessed-token")] {
        let seen = farref(&["inspect", &group.place], wrong).await?;
        assert_eq!(seen.code, 1);
        assert!(seen.out.contains("set FARREF_TOKEN"), "{}", seen.out);
        let all = seen.out + &seen.error;
        assert!(!all.contains("guessed-token") && !all.contains("only-we-know"));
    }
    for command in ["inspect", "top"] {
        let help = farref(&[command, "--help"], Some("only-we-know"))
            .await?
            .text()?;
        assert!(!help.contains("only-we-know") && help.contains("Examples:"));
    }
    group.finish().await
}

async fn what_cannot_be_looked_at_is_one_clear_line() -> anyhow::Result<()> {
    let error = farref(&["inspect", "127.0.0.1:9"], None).await?.failure()?;
    assert!(
        error.contains("nobody can be reached at tcp://127.0.0.1:9"),
        "{error}"
    );
    let error = farref(&["inspect", "no-address"], None).await?.failure()?;
    assert!(error.contains("`no-address` is no address"), "{error}");

    let store = StoreServer::bind("127.0.0.1:0").await?;
    let place = store.local_addr().to_string();
    let error = farref(&["inspect", &place], None).await?.failure()?;
    assert!(error.contains("no farref group has met"), "{error}");
    Ok(())
}

async fn a_worker_that_died_is_told_apart_from_those_that_live() -> anyhow::Result<()> {
    let group = Group::start(|builder| builder.fail_on_leaks(false)).await?;
    group.user.crash().await;
    let seen = farref(&["inspect", &group.place, "--timeout", "2"], None).await?;
    assert_fits(seen.out.split("no answer").next().unwrap_or_default());
    let row = seen
        .out
        .lines()
        .find(|row| row.trim_start().starts_with("user"));
    let row = row.context("it is not listed")?;
    // Either the owner has noticed already, or the worker does not answer.
    match row.contains("dead") {
        true => assert_eq!(seen.code, 0),
        false => {
            assert_eq!(seen.code, 1);
            assert!(seen.out.contains("no answer"), "{}", seen.out);
        }
    }
    assert!(seen.error.is_empty(), "{}", seen.error);
    group.owner.shutdown().await?;
    Ok(())
}

async fn top_without_a_terminal_says_what_to_use_instead() -> anyhow::Result<()> {
    for arguments in [&["top", "127.0.0.1:9"][..], &["top", "--demo"]] {
        let error = farref(arguments, None).await?.failure()?;
        assert!(error.contains("farref inspect"), "{error}");
    }
    Ok(())
}
