//! `farref certs` as a process of its own. What it makes is checked by the code that workers check certificates with
//! (webpki), and by openssl where that is installed.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use farref_testkit::Scratch;
use libtest_mimic::Trial;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        crate::blocking,
        an_authority_is_made_once_and_its_key_is_for_nobody_else,
        a_worker_gets_a_key_of_its_own_and_a_certificate_with_its_name,
        one_certificate_can_be_for_several_workers_or_for_any,
        an_observer_can_dial_and_cannot_answer,
        an_authority_vouches_for_its_own_only,
        certificates_count_at_once_also_where_clocks_are_behind,
        a_certificate_ends_when_its_authority_does_at_the_latest,
        what_is_handed_out_comes_with_the_authority_s_certificate_and_without_its_key,
        only_what_the_bearer_had_before_is_replaced,
        who_reads_a_pair_while_it_is_replaced_reads_whole_files_and_has_a_pair_at_the_end,
        a_pair_that_was_left_half_replaced_is_whole_after_the_next_issue,
        what_is_wrong_is_said_in_one_line_that_says_what_to_do,
        a_command_line_without_a_bearer_or_with_two_is_wrong,
        show_says_whose_a_certificate_is,
    ]
}

/// A test's own folder, which is removed with it.
struct Folder(Scratch);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(Scratch::new()?))
    }

    /// One with an authority in its folder `ca`.
    fn with_authority() -> anyhow::Result<Self> {
        let folder = Self::new()?;
        folder.certs("init ca")?;
        Ok(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.path(name)).with_context(|| name.to_owned())
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.path(name), text)?)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
        command
            .arg("certs")
            .args(arguments.split(' '))
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        command
    }

    /// What the command prints when all is well.
    fn certs(&self, arguments: &str) -> anyhow::Result<String> {
        let output = self.command(arguments).output()?;
        let error = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{arguments}: {error}");
        ensure!(error.is_empty(), "{arguments}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The one line that it prints when something is wrong.
    fn refused(&self, arguments: &str) -> anyhow::Result<String> {
        let output = self.command(arguments).output()?;
        let error = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1), "{arguments}: {error}");
        ensure!(output.stdout.is_empty(), "{arguments}: not only an error");
        ensure!(error.lines().count() == 1, "{arguments}: {error}");
        ensure!(error.starts_with("farref: "), "{arguments}: {error}");
        Ok(error)
    }

    fn mode(&self, name: &str) -> anyhow::Result<u32> {
        let found = std::fs::metadata(self.path(name)).with_context(|| name.to_owned())?;
        Ok(found.permissions().mode() & 0o777)
    }

    fn names(&self, folder: &str) -> anyhow::Result<BTreeSet<String>> {
        let entries = std::fs::read_dir(self.path(folder))?;
        entries
            .map(|entry| Ok(entry?.file_name().display().to_string()))
            .collect()
    }

    fn certificate(&self, name: &str) -> anyhow::Result<CertificateDer<'static>> {
        let path = self.path(name);
        CertificateDer::from_pem_file(path).with_context(|| name.to_owned())
    }

    /// The names (URIs) in a certificate, if that authority vouches for it.
    fn uris(&self, name: &str, authority: &str, usage: KeyUsage) -> anyhow::Result<Vec<String>> {
        self.uris_at(name, authority, usage, UnixTime::now())
    }

    /// The same by another clock.
    fn uris_at(
        &self,
        name: &str,
        authority: &str,
        usage: KeyUsage,
        now: UnixTime,
    ) -> anyhow::Result<Vec<String>> {
        let (own, authority) = (self.certificate(name)?, self.certificate(authority)?);
        let anchors = [anchor_from_trusted_cert(&authority)?];
        let own = EndEntityCert::try_from(&own)?;
        let algorithms = [webpki::ring::ECDSA_P256_SHA256];
        own.verify_for_usage(&algorithms, &anchors, &[], now, usage, None, None)?;
        Ok(own.valid_uri_names().map(str::to_owned).collect())
    }

    /// Checks that this certificate can be used at both ends of a connection; returns whose it is.
    fn certified(&self, name: &str, authority: &str) -> anyhow::Result<Vec<String>> {
        let uris = self.uris(name, authority, KeyUsage::client_auth())?;
        ensure!(uris == self.uris(name, authority, KeyUsage::server_auth())?);
        for purpose in ["sslclient", "sslserver"] {
            ensure!(self.openssl(name, authority, purpose)? != Some(false));
        }
        Ok(uris)
    }

    /// What openssl thinks of a certificate, if it is there.
    fn openssl(&self, name: &str, authority: &str, purpose: &str) -> anyhow::Result<Option<bool>> {
        let output = Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
            .args([self.path(authority), self.path(name)])
            .stdin(Stdio::null())
            .output();
        match output {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            output => Ok(Some(output?.status.success())),
        }
    }

    /// Whether a certificate and a key belong together.
    fn belong_together(&self, certificate: &str, key: &str) -> anyhow::Result<bool> {
        let certificate = self.certificate(certificate)?;
        let certificate = EndEntityCert::try_from(&certificate)?;
        let public_key = certificate.subject_public_key_info();
        let key = KeyPair::from_pem(&self.text(key)?)?;
        Ok(public_key.ends_with(key.public_key_raw()))
    }
}

fn an_authority_is_made_once_and_its_key_is_for_nobody_else() -> anyhow::Result<()> {
    let folder = Folder::new()?;
    let said = folder.certs("init ca --days 30 --name mine")?;
    ensure!(
        said.contains("ca/ca.pem") && said.contains("ca/ca-key.pem"),
        "{said}"
    );
    ensure!(folder.mode("ca")? == 0o700);
    ensure!(folder.mode("ca/ca-key.pem")? == 0o600);
    ensure!(folder.names("ca")? == ["ca-key.pem", "ca.pem"].map(str::to_owned).into());
    ensure!(folder.belong_together("ca/ca.pem", "ca/ca-key.pem")?);
    let before = (folder.text("ca/ca.pem")?, folder.text("ca/ca-key.pem")?);
    ensure!(
        folder
            .refused("init ca")?
            .contains("ca/ca.pem is there already")
    );
    ensure!(before == (folder.text("ca/ca.pem")?, folder.text("ca/ca-key.pem")?));
    // Nor is one half of it replaced, or put beside the other.
    std::fs::remove_file(folder.path("ca/ca.pem"))?;
    ensure!(
        folder
            .refused("init ca")?
            .contains("ca/ca-key.pem is there already")
    );
    ensure!(folder.names("ca")? == ["ca-key.pem".to_owned()].into());
    ensure!(before.1 == folder.text("ca/ca-key.pem")?);
    // A key whose certificate cannot be written does not stay.
    std::fs::create_dir(folder.path("barred"))?;
    std::os::unix::fs::symlink("nowhere/ca.pem", folder.path("barred/ca.pem"))?;
    let error = folder.refused("init barred")?;
    ensure!(error.contains("barred/ca.pem is there already"), "{error}");
    ensure!(folder.names("barred")? == ["ca.pem".to_owned()].into());
    Ok(())
}

fn a_worker_gets_a_key_of_its_own_and_a_certificate_with_its_name() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    let said = folder.certs("issue ca --worker worker0 --worker ps:1")?;
    ensure!(
        said.lines().count() == 2 && said.contains("worker ps:1, until "),
        "{said}"
    );
    for (stem, uri) in [
        ("worker0", "farref:worker/worker0"),
        ("ps:1", "farref:worker/ps%3A1"),
    ] {
        let (certificate, key) = (format!("ca/{stem}.pem"), format!("ca/{stem}.key"));
        ensure!(folder.certified(&certificate, "ca/ca.pem")? == [uri]);
        ensure!(folder.mode(&key)? == 0o600);
        ensure!(folder.belong_together(&certificate, &key)?);
    }
    ensure!(!folder.belong_together("ca/worker0.pem", "ca/ps:1.key")?);
    Ok(())
}

fn one_certificate_can_be_for_several_workers_or_for_any() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --worker b --worker a --worker b --as host0")?;
    let both = ["farref:worker/a", "farref:worker/b"];
    ensure!(folder.certified("ca/host0.pem", "ca/ca.pem")? == both);
    ensure!(!folder.path("ca/a.pem").exists());
    folder.certs("issue ca --any-worker")?;
    ensure!(folder.certified("ca/any-worker.pem", "ca/ca.pem")? == ["farref:worker/*"]);
    Ok(())
}

fn an_observer_can_dial_and_cannot_answer() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --observer")?;
    let (own, authority) = ("ca/observer.pem", "ca/ca.pem");
    let uris = folder.uris(own, authority, KeyUsage::client_auth())?;
    ensure!(uris == ["farref:observer"]);
    ensure!(
        folder
            .uris(own, authority, KeyUsage::server_auth())
            .is_err()
    );
    ensure!(folder.openssl(own, authority, "sslclient")? != Some(false));
    ensure!(folder.openssl(own, authority, "sslserver")? != Some(true));
    ensure!(folder.mode("ca/observer.key")? == 0o600);
    Ok(())
}

fn an_authority_vouches_for_its_own_only() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    // The same name, and another key.
    folder.certs("init other")?;
    folder.certs("issue ca --worker a")?;
    ensure!(folder.certified("ca/a.pem", "ca/ca.pem").is_ok());
    ensure!(folder.certified("ca/a.pem", "other/ca.pem").is_err());
    Ok(())
}

fn certificates_count_at_once_also_where_clocks_are_behind() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --worker a")?;
    let half_an_hour = Duration::from_secs(30 * 60);
    let there = SystemTime::now().duration_since(UNIX_EPOCH)? - half_an_hour;
    let there = UnixTime::since_unix_epoch(there);
    for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
        let uris = folder.uris_at("ca/a.pem", "ca/ca.pem", usage, there)?;
        ensure!(uris == ["farref:worker/a"]);
    }
    Ok(())
}

fn a_certificate_ends_when_its_authority_does_at_the_latest() -> anyhow::Result<()> {
    let folder = Folder::new()?;
    folder.certs("init ca --days 3")?;
    let until = |said: String| {
        Some(
            said.split_once("until ")?
                .1
                .split_once(" UTC")?
                .0
                .to_owned(),
        )
    };
    let authority = until(folder.certs("show ca/ca.pem")?);
    folder.certs("issue ca --worker long --worker short --days 900")?;
    ensure!(authority.is_some() && until(folder.certs("show ca/long.pem")?) == authority);
    folder.certs("issue ca --worker short --days 1")?;
    ensure!(until(folder.certs("show ca/short.pem")?) < authority);
    Ok(())
}

fn what_is_handed_out_comes_with_the_authority_s_certificate_and_without_its_key()
-> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --worker a --out host0")?;
    let expected = ["a.key", "a.pem", "ca.pem"].map(str::to_owned);
    ensure!(folder.names("host0")? == expected.into());
    ensure!(folder.mode("host0")? == 0o700);
    // It is made with all that is above it.
    folder.certs("issue ca --worker a --out racks/0/host7")?;
    ensure!(folder.names("racks/0/host7")?.len() == 3);
    ensure!(folder.mode("racks/0/host7")? == 0o700);
    ensure!(folder.certified("host0/a.pem", "host0/ca.pem").is_ok());
    // Two authorities, while one takes the other's place.
    folder.certs("init next")?;
    let error = folder.refused("issue next --worker a --out host0")?;
    ensure!(
        error.contains("host0/ca.pem is another authority's"),
        "{error}"
    );
    ensure!(folder.certified("host0/a.pem", "ca/ca.pem").is_ok());
    let both = folder.text("ca/ca.pem")? + &folder.text("next/ca.pem")?;
    folder.write("host0/ca.pem", &both)?;
    folder.certs("issue next --worker a --out host0")?;
    ensure!(folder.certified("host0/a.pem", "next/ca.pem").is_ok());
    ensure!(folder.text("host0/ca.pem")? == both);
    // Also in its own folder an authority finds the certificate that is its own.
    folder.write("next/ca.pem", &both)?;
    folder.certs("issue next --worker a")?;
    ensure!(folder.belong_together("next/a.pem", "next/a.key")?);
    Ok(())
}

fn only_what_the_bearer_had_before_is_replaced() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --observer")?;
    folder.certs("issue ca --worker a --as host0")?;
    folder.write("ca/lonely.key", "mine")?;
    let before = folder.names("ca")?;
    let texts = || -> anyhow::Result<Vec<String>> {
        before
            .iter()
            .map(|name| folder.text(&format!("ca/{name}")))
            .collect()
    };
    let kept = texts()?;
    for arguments in [
        "issue ca --worker ca",
        "issue ca --worker ca-key",
        "issue ca --worker observer",
        "issue ca --observer --as host0",
        "issue ca --worker b --as host0",
        "issue ca --worker lonely",
        // Nothing is written if one of several cannot be.
        "issue ca --worker fresh --worker ca",
    ] {
        let error = folder.refused(arguments)?;
        ensure!(
            error.contains("is there already, and is not a certificate for"),
            "{error}"
        );
    }
    ensure!(folder.names("ca")? == before);
    ensure!(texts()? == kept);
    Ok(())
}

fn who_reads_a_pair_while_it_is_replaced_reads_whole_files_and_has_a_pair_at_the_end()
-> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --worker a")?;
    let first = folder.text("ca/a.key")?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            loop {
                // A pair or not: both files are whole.
                folder.belong_together("ca/a.pem", "ca/a.key")?;
                if is_over.load(Ordering::Relaxed) {
                    return anyhow::Ok(());
                }
            }
        });
        let issue = || (0..4).try_for_each(|_| folder.certs("issue ca --worker a").map(drop));
        let issuers: Vec<_> = (0..3).map(|_| scope.spawn(issue)).collect();
        let issued: Vec<_> = issuers.into_iter().map(|issuer| issuer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for issued in issued {
            issued.map_err(|_| anyhow::anyhow!("an issuer panicked"))??;
        }
        reader
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))?
    })?;
    ensure!(folder.text("ca/a.key")? != first, "the key is the old one");
    ensure!(folder.belong_together("ca/a.pem", "ca/a.key")?);
    ensure!(folder.certified("ca/a.pem", "ca/ca.pem")? == ["farref:worker/a"]);
    let expected = ["a.key", "a.pem", "ca-key.pem", "ca.pem"].map(str::to_owned);
    ensure!(
        folder.names("ca")? == expected.into(),
        "something is left over"
    );
    Ok(())
}

fn a_pair_that_was_left_half_replaced_is_whole_after_the_next_issue() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("issue ca --worker a")?;
    std::fs::remove_file(folder.path("ca/a.key"))?;
    folder.certs("issue ca --worker a")?;
    ensure!(folder.belong_together("ca/a.pem", "ca/a.key")?);
    Ok(())
}

/// An authority that openssl or somebody else has made.
fn foreign(
    folder: &Folder,
    name: &str,
    change: impl Fn(&mut CertificateParams),
) -> anyhow::Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let key = KeyPair::generate()?;
    std::fs::create_dir(folder.path(name))?;
    folder.write(&format!("{name}/ca.pem"), &params.self_signed(&key)?.pem())?;
    folder.write(&format!("{name}/ca-key.pem"), &key.serialize_pem())
}

fn what_is_wrong_is_said_in_one_line_that_says_what_to_do() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    folder.certs("init other")?;
    std::fs::create_dir(folder.path("empty"))?;
    foreign(&folder, "ended", |params| {
        params.not_after = date_time_ymd(2020, 1, 2)
    })?;
    foreign(&folder, "member", |params| {
        params.is_ca = IsCa::ExplicitNoCa
    })?;
    foreign(&folder, "crossed", |_| {})?;
    folder.write("crossed/ca-key.pem", &folder.text("other/ca-key.pem")?)?;
    foreign(&folder, "garbled", |_| {})?;
    folder.write(
        "garbled/ca-key.pem",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    )?;
    foreign(&folder, "torn", |_| {})?;
    folder.write("torn/ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n")?;
    std::fs::create_dir(folder.path("looped"))?;
    std::os::unix::fs::symlink("ca.pem", folder.path("looped/ca.pem"))?;
    for (arguments, says) in [
        ("issue ca --worker a/b", "\"a/b\" cannot be a worker's name"),
        (
            "issue ca --worker a --as ../b",
            "\"../b\" cannot be a worker's name",
        ),
        (
            "issue nowhere --worker a",
            "there is no folder nowhere: make an authority in it with `farref certs init`",
        ),
        ("issue empty --worker a", "empty has no ca.pem"),
        (
            "issue ended --worker a",
            "has ended, on 2020-01-02 00:00 UTC",
        ),
        ("issue member --worker a", "must not sign others"),
        (
            "issue crossed --worker a",
            "does not belong to the certificate in crossed/ca.pem",
        ),
        ("issue garbled --worker a", "garbled/ca-key.pem is no key"),
        ("issue torn --worker a", "torn/ca.pem is no certificate"),
        (
            "issue ca --worker a --out ca/ca.pem/z",
            "cannot write ca/ca.pem/z",
        ),
        ("issue ca --worker a --out ca/ca.pem", "ca/ca.pem"),
        ("init ca/ca.pem/z", "cannot write ca/ca.pem/z"),
        // What cannot be looked at is not missing.
        ("issue looped --worker a", "cannot read looped/ca.pem"),
        // The authority's own certificate is kept there.
        (
            "issue ca --worker ca --out host1",
            "host1/ca.pem is the authority's",
        ),
        (
            "issue ca --worker a --worker b --as ca --out host1",
            "host1/ca.pem is the authority's",
        ),
        ("show nowhere.pem", "cannot read nowhere.pem"),
        ("show ca/ca-key.pem", "is no certificate"),
    ] {
        let error = folder.refused(arguments)?;
        ensure!(error.contains(says), "{arguments}: {error}");
    }
    for name in [String::new(), "x".repeat(65), "a\nb".into()] {
        let mut command = folder.command("init fresh --name");
        let output = command.arg(&name).output()?;
        let error = String::from_utf8(output.stderr)?;
        ensure!(
            error.contains("cannot be an authority's name"),
            "{name:?}: {error}"
        );
        ensure!(!folder.path("fresh").exists());
    }
    // Another's authority is as good as one's own.
    foreign(&folder, "good", |_| {})?;
    folder.certs("issue good --worker a")?;
    ensure!(
        folder.uris("good/a.pem", "good/ca.pem", KeyUsage::client_auth())? == ["farref:worker/a"]
    );
    Ok(())
}

fn a_command_line_without_a_bearer_or_with_two_is_wrong() -> anyhow::Result<()> {
    let folder = Folder::with_authority()?;
    for arguments in [
        "issue ca",
        "issue ca --worker a --observer",
        "issue ca --any-worker --observer",
        "issue ca --worker a --days 0",
        "init x --days 40000",
    ] {
        let output = folder.command(arguments).output()?;
        ensure!(output.status.code() == Some(2), "{arguments}: {output:?}");
    }
    ensure!(folder.names("ca")?.len() == 2);
    Ok(())
}

fn show_says_whose_a_certificate_is() -> anyhow::Result<()> {
    let folder = Folder::new()?;
    folder.certs("init ca --name mine")?;
    folder.certs("issue ca --worker ps:1")?;
    folder.certs("issue ca --observer")?;
    folder.certs("issue ca --worker a --worker b --as ab")?;
    for (file, who) in [
        ("ca/ca.pem", "authority CN=mine (key "),
        ("ca/ps:1.pem", "worker ps:1, until "),
        ("ca/observer.pem", "observer, until "),
        ("ca/ab.pem", "worker a, worker b, until "),
    ] {
        let said = folder.certs(&format!("show {file}"))?;
        ensure!(said.starts_with(who), "{said}");
        let by = match file {
            "ca/ca.pem" => " UTC, signed by itself\n",
            _ => " UTC, signed by CN=mine (key ",
        };
        ensure!(said.contains(by), "{said}");
    }
    // Authorities of one name are told apart by their keys, and so is what they have signed.
    folder.certs("init next --name mine")?;
    folder.certs("issue next --worker ps:1")?;
    let key = |file: &str| -> anyhow::Result<String> {
        let said = folder.certs(&format!("show {file}"))?;
        let key = said
            .split("(key ")
            .nth(1)
            .and_then(|rest| rest.split(')').next());
        Ok(key.context("no key")?.to_owned())
    };
    ensure!(key("ca/ca.pem")? == key("ca/ps:1.pem")?);
    ensure!(key("next/ca.pem")? == key("next/ps:1.pem")?);
    ensure!(key("ca/ca.pem")? != key("next/ca.pem")?);
    foreign(&folder, "ended", |params| {
        params.not_after = date_time_ymd(2020, 1, 2)
    })?;
    let said = folder.certs("show ended/ca.pem")?;
    ensure!(said.contains("ended on 2020-01-02"), "{said}");
    Ok(())
}
