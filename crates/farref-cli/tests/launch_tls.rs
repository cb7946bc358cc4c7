//! `farref launch --tls`: which certificates ranks get, that those are gone with the launcher, and that ranks talk with them.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use farref::Worker;
use libtest_mimic::{Arguments, Failed, Trial};
use rcgen::KeyPair;
use rustix::process::{Pid, Signal, kill_process};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// How long something may take that should not take long.
const PATIENCE: Duration = Duration::from_secs(60);
const VARIABLES: [&str; 3] = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];

/// Tells this program that it is started as a rank of farref, and what it is to do.
const RANK_PROGRAM: &str = "FARREF_LAUNCH_TLS_TEST_RANK";

/// Makes a test of each function, under its own name.
macro_rules! trials {
    ($($(#[$meta:meta])* $test:ident,)*) => {
        vec![$($(#[$meta])* Trial::test(stringify!($test), || {
            $test().map_err(|error| Failed::from(format!("{error:?}")))
        })),*]
    };
}

fn main() -> anyhow::Result<()> {
    if let Ok(role) = std::env::var(RANK_PROGRAM) {
        return be_rank(&role);
    }
    let trials = trials![
        every_rank_gets_a_key_of_its_own_and_a_certificate_for_its_name,
        ranks_with_the_names_of_other_files_get_theirs,
        a_program_that_chooses_its_names_gets_a_certificate_for_any,
        nobody_else_can_read_keys_and_the_authority_s_is_nowhere,
        certificates_go_with_the_group_also_when_it_is_interrupted,
        #[cfg(target_os = "linux")]
        what_a_launcher_that_was_killed_has_left_the_next_one_removes,
        a_rank_that_is_started_again_has_the_certificate_it_had,
        what_does_not_fit_together_is_one_clear_line,
        nothing_is_kept_where_others_can_look,
        who_has_certificates_already_keeps_them,
        ranks_talk_over_tls_and_who_started_them_can_look_on,
        a_rank_with_another_name_than_its_certificate_s_is_refused_unless_it_is_for_any,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Launches in a directory of their own, where the launcher also keeps what it makes.
struct Launch {
    directory: PathBuf,
}

impl Launch {
    fn new() -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farref-launch-tls-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory)?;
        Ok(Self { directory })
    }

    fn command(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command
            .arg("launch")
            .args(options)
            .arg("--")
            .args(program)
            .current_dir(&self.directory)
            .env("XDG_RUNTIME_DIR", &self.directory)
            .env_remove("FARREF_TOKEN")
            .env("OMP_NUM_THREADS", "1")
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a script in every rank until the launcher ends well.
    fn sh(&self, options: &[&str], script: &str) -> anyhow::Result<String> {
        let output = self.command(options, &["sh", "-c", script]).output()?;
        ensure!(output.status.success(), "{output:?}");
        ensure!(output.stderr.is_empty(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn start(
        &self,
        options: &[&str],
        script: &str,
    ) -> anyhow::Result<(Child, BufReader<ChildStdout>)> {
        let mut child = self.command(options, &["sh", "-c", script]).spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        Ok((child, BufReader::new(stdout)))
    }

    /// Has every rank copy its files: `0.pem`, `0.key`, `0.ca`, ..
    fn copies(&self, options: &[&str]) -> anyhow::Result<()> {
        let copy = "cp $FARREF_TLS_CERT $RANK.pem; cp $FARREF_TLS_KEY $RANK.key; cp $FARREF_TLS_CA $RANK.ca";
        self.sh(options, copy).map(drop)
    }

    fn text(&self, name: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.directory.join(name)).with_context(|| name.to_owned())
    }

    fn certificate(&self, name: &str) -> anyhow::Result<CertificateDer<'static>> {
        let path = self.directory.join(name);
        CertificateDer::from_pem_file(path).with_context(|| name.to_owned())
    }

    /// The names (URIs) in the certificate of a rank, if the authority of another vouches for it, and its key belongs to it.
    fn uris(&self, rank: u32, of: u32) -> anyhow::Result<Vec<String>> {
        let own = self.certificate(&format!("{rank}.pem"))?;
        let authority = self.certificate(&format!("{of}.ca"))?;
        let anchors = [anchor_from_trusted_cert(&authority)?];
        let own = EndEntityCert::try_from(&own)?;
        for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
            let algorithms = [webpki::ring::ECDSA_P256_SHA256];
            let now = UnixTime::now();
            own.verify_for_usage(&algorithms, &anchors, &[], now, usage, None, None)?;
        }
        let key = KeyPair::from_pem(&self.text(&format!("{rank}.key"))?)?;
        let public_key = own.subject_public_key_info();
        ensure!(public_key.ends_with(key.public_key_raw()), "not its key");
        Ok(own.valid_uri_names().map(str::to_owned).collect())
    }

    /// What is in the directory where the launcher keeps things.
    fn kept(&self) -> anyhow::Result<BTreeSet<String>> {
        names(&self.directory.join("farref"))
    }

    /// Asserts that no launcher has left anything.
    fn finish(self) -> anyhow::Result<()> {
        let kept = self.kept()?;
        ensure!(kept.is_empty(), "something is left: {kept:?}");
        Ok(())
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn names(directory: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(directory)?;
    entries
        .map(|entry| Ok(entry?.file_name().display().to_string()))
        .collect()
}

/// Ends a launcher, however a test ends.
struct Ended(Child);

impl Ended {
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.0.id())?).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads lines until all of so many ranks have said this; returns what they said.
fn await_lines(
    lines: &mut BufReader<ChildStdout>,
    text: &str,
    count: usize,
) -> anyhow::Result<Vec<String>> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let mut line = String::new();
        ensure!(
            lines.read_line(&mut line)? > 0,
            "the output ended before {text:?} came"
        );
        if line.contains(text) {
            seen.push(line.trim_end().to_owned());
        }
    }
    Ok(seen)
}

/// Waits for something that nobody tells of.
fn until(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn refused(output: Output) -> anyhow::Result<String> {
    let error = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{error}");
    ensure!(error.lines().count() == 1, "{error}");
    Ok(error)
}

fn every_rank_gets_a_key_of_its_own_and_a_certificate_for_its_name() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    launch.copies(&["-n", "2", "--tls"])?;
    for (rank, other) in [(0, 1), (1, 0)] {
        let expected = format!("farref:worker/worker{rank}");
        ensure!(launch.uris(rank, other)? == [expected]);
    }
    ensure!(launch.text("0.key")? != launch.text("1.key")?);
    // Another group has another authority.
    let other = Launch::new()?;
    other.copies(&["-n", "1", "--tls"])?;
    std::fs::write(launch.directory.join("7.ca"), other.text("0.ca")?)?;
    ensure!(launch.uris(0, 7).is_err());
    other.finish()?;
    launch.finish()
}

fn ranks_with_the_names_of_other_files_get_theirs() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let names = ["ca", "observer", "a:1", "0"];
    launch.copies(&["--tls", "--names", &names.join(",")])?;
    let expected = ["ca", "observer", "a%3A1", "0"];
    for (rank, name) in (0..).zip(expected) {
        ensure!(launch.uris(rank, 0)? == [format!("farref:worker/{name}")]);
    }
    launch.finish()
}

fn a_program_that_chooses_its_names_gets_a_certificate_for_any() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    launch.copies(&["-n", "2", "--tls-any-name"])?;
    for rank in [0, 1] {
        ensure!(launch.uris(rank, 0)? == ["farref:worker/*"]);
    }
    launch.finish()
}

fn nobody_else_can_read_keys_and_the_authority_s_is_nowhere() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script =
        "cd $(dirname $FARREF_TLS_CERT) && LC_ALL=C ls -A && stat -c '%a %n' . $FARREF_TLS_KEY";
    let said = launch.sh(&["-n", "1", "--tls"], script)?;
    let lines: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("[0] "))
        .collect();
    let Some((files, modes)) = lines.split_last_chunk::<2>() else {
        anyhow::bail!("{said}");
    };
    ensure!(
        files == ["0.key", "0.pem", "ca.pem", "observer.key", "observer.pem"],
        "{said}"
    );
    ensure!(
        modes[0] == "700 ." && modes[1].starts_with("600 "),
        "{said}"
    );
    launch.finish()
}

fn certificates_go_with_the_group_also_when_it_is_interrupted() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "trap 'exit 0' INT; echo here; while :; do sleep 0.05; done";
    let (child, mut lines) = launch.start(&["-n", "2", "--tls"], script)?;
    let mut child = Ended(child);
    await_lines(&mut lines, "here", 2)?;
    ensure!(launch.kept()?.iter().any(|name| name.ends_with(".tls")));
    child.signal(Signal::INT)?;
    ensure!(child.0.wait()?.success());
    launch.finish()
}

#[cfg(target_os = "linux")]
fn what_a_launcher_that_was_killed_has_left_the_next_one_removes() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "echo pid $$; exec sleep 1000";
    let (child, mut lines) = launch.start(&["-n", "1", "--tls"], script)?;
    let mut killed = Ended(child);
    let said = await_lines(&mut lines, "pid ", 1)?.concat();
    let rank = said.split_whitespace().last().context("no process id")?;
    let rank = Path::new("/proc").join(rank);
    // Who is there meanwhile keeps what is theirs.
    let (child, mut lines) = launch.start(&["-n", "1", "--tls"], "echo here; exec sleep 1000")?;
    let mut other = Ended(child);
    await_lines(&mut lines, "here", 1)?;
    let both = launch.kept()?;
    killed.signal(Signal::KILL)?;
    killed.0.wait()?;
    until("the rank dies with its launcher", || !rank.exists())?;
    ensure!(launch.kept()? == both, "nobody was there to remove it");
    launch.sh(&["-n", "1", "--tls"], "true")?;
    let kept = launch.kept()?;
    let folders = kept.iter().filter(|name| name.ends_with(".tls"));
    ensure!(folders.count() == 1, "{kept:?}");
    other.signal(Signal::TERM)?;
    other.0.wait()?;
    let kept = launch.kept()?;
    ensure!(!kept.iter().any(|name| name.ends_with(".tls")), "{kept:?}");
    Ok(())
}

fn a_rank_that_is_started_again_has_the_certificate_it_had() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // The other one has not ended well meanwhile.
    let script = "cp $FARREF_TLS_CERT $RANK.pem.$FARREF_RESTART_COUNT; \
        [ $RANK = 0 ] && exit $((1 - FARREF_RESTART_COUNT)); until [ -e 0.pem.1 ]; do sleep 0.05; done";
    let command = ["-n", "2", "--restarts", "1", "--tls"];
    let output = launch.command(&command, &["sh", "-c", script]).output()?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(launch.text("0.pem.0")? == launch.text("0.pem.1")?);
    launch.finish()
}

fn what_does_not_fit_together_is_one_clear_line() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    for flag in ["--tls", "--tls-any-name"] {
        let options = [
            "-n",
            "1",
            "--nnodes",
            "2",
            "--node-rank",
            "0",
            "--rendezvous",
            "127.0.0.1:1",
            flag,
        ];
        let error = refused(launch.command(&options, &["true"]).output()?)?;
        for part in ["--nnodes 2", "farref certs", "FARREF_TLS_CERT"] {
            ensure!(error.contains(part), "{error}");
        }
    }
    for variable in VARIABLES {
        let mut command = launch.command(&["-n", "1", "--tls"], &["true"]);
        let error = refused(command.env(variable, "mine.pem").output()?)?;
        ensure!(error.contains(&format!("{variable} is set")), "{error}");
    }
    ensure!(!launch.directory.join("farref").exists());
    Ok(())
}

fn nothing_is_kept_where_others_can_look() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let kept = launch.directory.join("farref");
    std::fs::create_dir(&kept)?;
    for mode in [0o750, 0o701] {
        std::fs::set_permissions(&kept, Permissions::from_mode(mode))?;
        let mut command = launch.command(&["-n", "1", "--tls"], &["true"]);
        let error = refused(command.output()?)?;
        ensure!(error.contains("others can look into it"), "{error}");
        // Without certificates it works, and is not looked into.
        let output = launch.command(&["-n", "1"], &["true"]).output()?;
        ensure!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr)?;
        ensure!(said.contains("others can look into it"), "{said}");
    }
    launch.finish()
}

fn who_has_certificates_already_keeps_them() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let mut command = launch.command(&["-n", "1"], &["sh", "-c", "echo $FARREF_TLS_CERT"]);
    let output = command.env("FARREF_TLS_CERT", "mine.pem").output()?;
    ensure!(output.stdout == b"[0] mine.pem\n", "{output:?}");
    let said = launch.sh(&["-n", "1"], "echo ${FARREF_TLS_CERT-none}")?;
    ensure!(said == "[0] none\n", "{said}");
    launch.finish()
}

#[farref::remote]
async fn add(a: u32, b: u32) -> u32 {
    a + b
}

/// A rank that meets the other one over TCP.
#[tokio::main]
async fn be_rank(role: &str) -> anyhow::Result<()> {
    let rank: u32 = std::env::var("RANK")?.parse()?;
    let mut builder = Worker::from_env().unix_sockets(false);
    if role == "chooses" {
        builder = builder.name(format!("mine{rank}"));
    }
    let me = builder.join().await?;
    for peer in me.peers() {
        ensure!(add::on(&peer, 1, 2).await? == 3);
    }
    println!("met at {}", std::env::var("MASTER_PORT")?);
    while role == "watched" && !Path::new("over").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(me.shutdown().await?)
}

fn rank_program() -> anyhow::Result<String> {
    let myself = std::env::current_exe()?;
    Ok(myself
        .to_str()
        .context("a path that is no text")?
        .to_owned())
}

fn ranks_talk_over_tls_and_who_started_them_can_look_on() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let options = ["--names", "first,second", "--tls"];
    let mut child = launch
        .command(&options, &[&rank_program()?])
        .env(RANK_PROGRAM, "watched")
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut child = Ended(child);
    let said = await_lines(&mut lines, "met at ", 2)?;
    let port = said.iter().find_map(|line| line.split_whitespace().last());
    let port = port.context("no port")?;
    let token = launch.text(&format!("farref/{port}.token"))?;
    let inspect = |directory: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command
            .args(["inspect", &format!("127.0.0.1:{port}")])
            .env("XDG_RUNTIME_DIR", directory)
            .env("FARREF_TOKEN", &token)
            .output()
    };
    let seen = inspect(&launch.directory)?;
    let text = String::from_utf8_lossy(&seen.stdout);
    ensure!(seen.status.success(), "{seen:?}");
    ensure!(text.contains("first") && text.contains("second"), "{text}");
    // Who knows the token and has no certificate does not see them.
    let elsewhere = launch.directory.join("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let seen = inspect(&elsewhere)?;
    ensure!(!seen.status.success(), "{seen:?}");
    let text = String::from_utf8_lossy(&seen.stdout) + String::from_utf8_lossy(&seen.stderr);
    ensure!(text.contains("certificate"), "{text}");

    std::fs::write(launch.directory.join("over"), "")?;
    ensure!(child.0.wait()?.success());
    launch.finish()
}

fn a_rank_with_another_name_than_its_certificate_s_is_refused_unless_it_is_for_any()
-> anyhow::Result<()> {
    let launch = Launch::new()?;
    let run = |option| {
        let mut command = launch.command(&["-n", "2", option], &[&rank_program()?]);
        anyhow::Ok(command.env(RANK_PROGRAM, "chooses").output()?)
    };
    let output = run("--tls")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "{output:?}");
    ensure!(
        error.contains("certificate") && error.contains("mine"),
        "{error}"
    );
    let output = run("--tls-any-name")?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(text.matches("met at ").count() == 2, "{text}");
    launch.finish()
}
