//! `farref launch --tls`: which certificates ranks get, that those are gone with the launcher, and that ranks talk with them.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, ensure};
use farref::Worker;
use farref_testkit::{eventually, eventually_blocking};
use libtest_mimic::Trial;
use rcgen::KeyPair;
use rustix::process::Signal;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::launching::{Launch, Running, TLS_VARIABLES, myself};

/// Tells this program that it is started as a rank of farref, and what it is to do.
const RANK_PROGRAM: &str = "FARREF_LAUNCH_TLS_TEST_RANK";

/// Does what the environment tells, if it does.
pub(crate) fn work_if_told() -> Option<anyhow::Result<()>> {
    let role = std::env::var(RANK_PROGRAM).ok()?;
    Some(be_rank(&role))
}

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        crate::blocking,
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
    ]
}

/// What launchers keep in their folder.
impl Launch {
    /// The output of a script in every rank, when all have ended well.
    fn said(&self, options: &[&str], script: &str) -> anyhow::Result<String> {
        let output = self.sh(options, script)?;
        ensure!(output.status.success(), "{output:?}");
        ensure!(output.stderr.is_empty(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Has every rank copy its files: `0.pem`, `0.key`, `0.ca`, ..
    fn copies(&self, options: &[&str]) -> anyhow::Result<()> {
        let copy = "cp $FARREF_TLS_CERT $RANK.pem; cp $FARREF_TLS_KEY $RANK.key; cp $FARREF_TLS_CA $RANK.ca";
        self.said(options, copy).map(drop)
    }

    fn text(&self, name: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.path(name)).with_context(|| name.to_owned())
    }

    fn certificate(&self, name: &str) -> anyhow::Result<CertificateDer<'static>> {
        let path = self.path(name);
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
        names(&self.path("farref"))
    }

    /// Asserts that no launcher has left a process or a file.
    fn finish_without_files(self) -> anyhow::Result<()> {
        let kept = self.kept()?;
        ensure!(kept.is_empty(), "something is left: {kept:?}");
        self.finish()
    }
}

fn names(directory: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(directory)?;
    entries
        .map(|entry| Ok(entry?.file_name().display().to_string()))
        .collect()
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
    std::fs::write(launch.path("7.ca"), other.text("0.ca")?)?;
    ensure!(launch.uris(0, 7).is_err());
    other.finish_without_files()?;
    launch.finish_without_files()
}

fn ranks_with_the_names_of_other_files_get_theirs() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let names = ["ca", "observer", "a:1", "0"];
    launch.copies(&["--tls", "--names", &names.join(",")])?;
    let expected = ["ca", "observer", "a%3A1", "0"];
    for (rank, name) in (0..).zip(expected) {
        ensure!(launch.uris(rank, 0)? == [format!("farref:worker/{name}")]);
    }
    launch.finish_without_files()
}

fn a_program_that_chooses_its_names_gets_a_certificate_for_any() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    launch.copies(&["-n", "2", "--tls-any-name"])?;
    for rank in [0, 1] {
        ensure!(launch.uris(rank, 0)? == ["farref:worker/*"]);
    }
    launch.finish_without_files()
}

fn nobody_else_can_read_keys_and_the_authority_s_is_nowhere() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script =
        "cd $(dirname $FARREF_TLS_CERT) && LC_ALL=C ls -A && stat -c '%a %n' . $FARREF_TLS_KEY";
    let said = launch.said(&["-n", "1", "--tls"], script)?;
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
    launch.finish_without_files()
}

fn certificates_go_with_the_group_also_when_it_is_interrupted() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "trap 'exit 0' INT; echo here; while :; do sleep 0.05; done";
    let mut running = launch.start(&["-n", "2", "--tls"], script)?;
    running.await_lines("here", 2)?;
    ensure!(launch.kept()?.iter().any(|name| name.ends_with(".tls")));
    running.signal(Signal::INT)?;
    ensure!(running.child.wait()?.success());
    launch.finish_without_files()
}

#[cfg(target_os = "linux")]
fn what_a_launcher_that_was_killed_has_left_the_next_one_removes() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "echo pid $$; exec sleep 1000";
    let mut killed = launch.start(&["-n", "1", "--tls"], script)?;
    let said = killed.await_lines("pid ", 1)?.concat();
    let rank = said.split_whitespace().last().context("no process id")?;
    let rank = Path::new("/proc").join(rank);
    // Who is there meanwhile keeps what is theirs.
    let mut other = launch.start(&["-n", "1", "--tls"], "echo here; exec sleep 1000")?;
    other.await_lines("here", 1)?;
    let both = launch.kept()?;
    killed.signal(Signal::KILL)?;
    killed.child.wait()?;
    eventually_blocking("the rank dies with its launcher", || Ok(!rank.exists()))?;
    ensure!(launch.kept()? == both, "nobody was there to remove it");
    launch.said(&["-n", "1", "--tls"], "true")?;
    let kept = launch.kept()?;
    let folders = kept.iter().filter(|name| name.ends_with(".tls"));
    ensure!(folders.count() == 1, "{kept:?}");
    other.signal(Signal::TERM)?;
    other.child.wait()?;
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
    launch.finish_without_files()
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
    for variable in TLS_VARIABLES {
        let mut command = launch.command(&["-n", "1", "--tls"], &["true"]);
        let error = refused(command.env(variable, "mine.pem").output()?)?;
        ensure!(error.contains(&format!("{variable} is set")), "{error}");
    }
    ensure!(!launch.path("farref").exists());
    Ok(())
}

fn nothing_is_kept_where_others_can_look() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let kept = launch.path("farref");
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
    launch.finish_without_files()
}

fn who_has_certificates_already_keeps_them() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let mut command = launch.command(&["-n", "1"], &["sh", "-c", "echo $FARREF_TLS_CERT"]);
    let output = command.env("FARREF_TLS_CERT", "mine.pem").output()?;
    ensure!(output.stdout == b"[0] mine.pem\n", "{output:?}");
    let said = launch.said(&["-n", "1"], "echo ${FARREF_TLS_CERT-none}")?;
    ensure!(said == "[0] none\n", "{said}");
    launch.finish_without_files()
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
    if role == "watched" {
        eventually("the test is over", || Path::new("over").exists()).await?;
    }
    Ok(me.shutdown().await?)
}

fn ranks_talk_over_tls_and_who_started_them_can_look_on() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let options = ["--names", "first,second", "--tls"];
    let mut command = launch.command(&options, &[&myself()?]);
    let mut running = Running::start(command.env(RANK_PROGRAM, "watched"))?;
    let said = running.await_lines("met at ", 2)?;
    let port = said.iter().find_map(|line| line.split_whitespace().last());
    let port = port.context("no port")?;
    let token = launch.text(&format!("farref/{port}.token"))?;
    let inspect = |directory: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
        for variable in TLS_VARIABLES {
            command.env_remove(variable);
        }
        command
            .args(["inspect", &format!("127.0.0.1:{port}")])
            .env("XDG_RUNTIME_DIR", directory)
            .env("FARREF_TOKEN", &token)
            .output()
    };
    let seen = inspect(launch.scratch.path())?;
    let text = String::from_utf8_lossy(&seen.stdout);
    ensure!(seen.status.success(), "{seen:?}");
    ensure!(text.contains("first") && text.contains("second"), "{text}");
    // Who knows the token and has no certificate does not see them.
    let elsewhere = launch.path("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let seen = inspect(&elsewhere)?;
    ensure!(!seen.status.success(), "{seen:?}");
    let text = String::from_utf8_lossy(&seen.stdout) + String::from_utf8_lossy(&seen.stderr);
    ensure!(text.contains("certificate"), "{text}");

    launch.touch("over")?;
    ensure!(running.child.wait()?.success());
    launch.finish_without_files()
}

fn a_rank_with_another_name_than_its_certificate_s_is_refused_unless_it_is_for_any()
-> anyhow::Result<()> {
    let launch = Launch::new()?;
    let run = |option| {
        let mut command = launch.command(&["-n", "2", option], &[&myself()?]);
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
    launch.finish_without_files()
}
