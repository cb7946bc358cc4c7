//! The store in a real etcd: Debian's, started by each test. Without one the tests say so and pass, unless
//! `FARREF_REQUIRE_ETCD` is set.

mod eras;
mod faults;
mod meddler;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use farref_testkit::{Scratch, TEST_TIMEOUT, free_port};
use serde_json::json;

use super::*;
use crate::store::check_store;

const SHORT: Duration = Duration::from_millis(300);

/// An etcd of a test's own. Killed when dropped.
struct Etcd {
    child: Child,
    port: u16,
    peer_port: u16,
    scratch: Scratch,
    tls: bool,
}

impl Etcd {
    /// None where none is installed, and need not be.
    fn start(tls: bool) -> Option<Self> {
        let scratch = Scratch::new().unwrap();
        let (port, peer_port) = (free_port().unwrap(), free_port().unwrap());
        match launch(&scratch, port, peer_port, tls) {
            Ok(child) => Some(Self {
                child,
                port,
                peer_port,
                scratch,
                tls,
            }),
            Err(error) if std::env::var_os("FARREF_REQUIRE_ETCD").is_none() => {
                eprintln!("left out, there is no etcd (Debian: etcd-server): {error}");
                None
            }
            Err(error) => panic!("FARREF_REQUIRE_ETCD is set, and etcd does not start: {error}"),
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = launch(&self.scratch, self.port, self.peer_port, self.tls).unwrap();
    }

    fn place(&self, user: &str, rest: &str) -> EtcdPlace {
        let (scheme, port) = (if self.tls { "etcds" } else { "etcd" }, self.port);
        let text = format!("{scheme}://{user}127.0.0.1:{port}/test/{rest}");
        text.parse().unwrap()
    }

    async fn open(&self, rest: &str) -> EtcdStore {
        EtcdStore::open(&self.place("", rest), TEST_TIMEOUT)
            .await
            .unwrap()
    }

    /// What an administrator asks for.
    async fn ask(&self, path: &str, request: serde_json::Value) {
        let gateway = Gateway::new(&self.place("", "admin")).unwrap();
        let end = Instant::now() + TEST_TIMEOUT;
        // Not twice: what is there already cannot be made, and an etcd may take its time on a machine that is busy.
        gateway.call(path, &request, false, end).await.unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Certificates and keys that belong together, for tests only and good until 2126.
const TESTDATA: [(&str, &str); 4] = [
    ("ca.pem", include_str!("../testdata/ca.pem")),
    ("other_ca.pem", include_str!("../testdata/other_ca.pem")),
    ("server.pem", include_str!("../testdata/server.pem")),
    ("server.key", include_str!("../testdata/server.key")),
];

fn launch(scratch: &Scratch, port: u16, peer_port: u16, tls: bool) -> std::io::Result<Child> {
    let scheme = if tls { "https" } else { "http" };
    let client = format!("{scheme}://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(scratch.path().join("store").with_extension("etcd"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        // Passwords of tests need not be hard to find.
        .args(["--bcrypt-cost", "4", "--log-level", "error"]);
    if tls {
        for (name, content) in TESTDATA {
            std::fs::write(scratch.file(name), content)?;
        }
        command
            .args(["--cert-file", &scratch.file("server.pem")])
            .args(["--key-file", &scratch.file("server.key")])
            .args(["--trusted-ca-file", &scratch.file("ca.pem")])
            .arg("--client-cert-auth");
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

#[tokio::test]
async fn a_store_in_etcd_keeps_every_guarantee() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (one, other) = (etcd.open("a").await, etcd.open("a").await);
    check_store(Arc::new(one), Arc::new(other)).await.unwrap();
}

#[tokio::test]
async fn what_was_set_while_here_goes_with_its_user_and_all_with_the_last_member() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (member, guest) = (etcd.open("a").await, etcd.open("a").await);
    member
        .compare_set_while_here("card", b"", b"me")
        .await
        .unwrap();
    member.set("lasting", b"v").await.unwrap();
    let mut over = guest.over();
    let early = tokio::time::timeout(SHORT, &mut over).await;
    assert!(early.is_err(), "it has not begun");
    member.settle().await.unwrap();
    assert_eq!(guest.try_get("card").await.unwrap().unwrap(), "me");
    assert!(tokio::time::timeout(SHORT, &mut over).await.is_err());

    member.leave().await.unwrap();
    tokio::time::timeout(TEST_TIMEOUT, over)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(guest.try_get("card").await.unwrap(), None);
    assert_eq!(guest.try_get("lasting").await.unwrap().unwrap(), "v");

    // The guest does not keep what is over.
    let next = etcd.open("a").await;
    assert_eq!(next.try_get("lasting").await.unwrap(), None);
    for failed in [
        guest.set("lasting", b"w").await.unwrap_err(),
        guest.try_get("lasting").await.unwrap_err(),
        guest.settle().await.unwrap_err(),
    ] {
        assert!(matches!(failed, StoreError::Ended { .. }), "{failed}");
    }
    assert_eq!(next.try_get("lasting").await.unwrap(), None);
}

#[tokio::test]
async fn before_anybody_has_settled_all_goes_with_the_last_user() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (one, two) = (etcd.open("a").await, etcd.open("a").await);
    one.set("k", b"v").await.unwrap();
    one.leave().await.unwrap();
    let three = etcd.open("a").await;
    assert_eq!(three.try_get("k").await.unwrap().unwrap(), "v");
    two.leave().await.unwrap();
    three.leave().await.unwrap();
    assert_eq!(etcd.open("a").await.try_get("k").await.unwrap(), None);
    // Other prefixes are other stores.
    assert_eq!(etcd.open("a/b").await.try_get("k").await.unwrap(), None);
}

#[tokio::test]
async fn who_was_taken_for_dead_hears_of_it_and_is_a_member_again() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let member = etcd.open("a?ttl=10").await;
    member
        .compare_set_while_here("card", b"", b"me")
        .await
        .unwrap();
    member.set("lasting", b"v").await.unwrap();
    member.settle().await.unwrap();
    let lease = member.era.lease().await.unwrap();
    let gateway = member.era.gateway();
    gateway
        .revoke(lease, Instant::now() + TEST_TIMEOUT)
        .await
        .unwrap();
    tokio::time::timeout(TEST_TIMEOUT, member.lost())
        .await
        .unwrap()
        .unwrap();
    // Once for each time.
    assert!(tokio::time::timeout(SHORT, member.lost()).await.is_err());
    let guest = etcd.open("a").await;
    assert_eq!(guest.try_get("card").await.unwrap(), None);
    assert_eq!(guest.try_get("lasting").await.unwrap().unwrap(), "v");
    assert!(tokio::time::timeout(SHORT, guest.over()).await.is_err());
}

#[tokio::test]
async fn an_etcd_that_comes_back_has_everybody_in_it_and_one_that_forgot_is_told_again() {
    let Some(mut etcd) = Etcd::start(false) else {
        return;
    };
    let (member, second) = (etcd.open("a?ttl=10").await, etcd.open("a?ttl=10").await);
    member.set("lasting", b"v").await.unwrap();
    for member in [&member, &second] {
        member.settle().await.unwrap();
    }
    etcd.kill();
    let waiting = member.get("later", TEST_TIMEOUT);
    let (got, ()) = tokio::join!(waiting, async {
        sleep(SHORT).await;
        etcd.start_again();
        let other = etcd.open("a").await;
        assert_eq!(other.try_get("lasting").await.unwrap().unwrap(), "v");
        other.set("later", b"now").await.unwrap();
    });
    assert_eq!(got.unwrap(), "now");

    etcd.kill();
    std::fs::remove_dir_all(etcd.scratch.path().join("store").with_extension("etcd")).unwrap();
    etcd.start_again();
    // Whichever of the members is faster, both are in the same era as before.
    for member in [&member, &second] {
        let lost = tokio::time::timeout(TEST_TIMEOUT, member.lost()).await;
        lost.unwrap().unwrap();
    }
    assert_eq!(member.try_get("lasting").await.unwrap(), None);
    second.set("lasting", b"w").await.unwrap();
    member.settle().await.unwrap();
    let other = etcd.open("a").await;
    assert_eq!(other.try_get("lasting").await.unwrap().unwrap(), "w");
}

#[tokio::test]
async fn an_etcd_that_cannot_be_reached_is_named_in_time() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let place = format!("etcd://127.0.0.1:{}/p", gone.unwrap().port());
    let opened = EtcdStore::open(&place.parse().unwrap(), SHORT).await;
    let error = opened.unwrap_err();
    assert!(matches!(error, StoreError::NoEtcd { .. }), "{error}");
    assert!(error.to_string().contains(&place), "{error}");
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_begins_anew() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (store, other) = (etcd.open("a").await, etcd.open("a").await);
    let before = store.missing(&["k".to_owned()]).await.unwrap().1;
    for number in 0..5 {
        other.add("n", number).await.unwrap();
    }
    let now = store.missing(&["k".to_owned()]).await.unwrap().1;
    let compact = json!({ "revision": now.to_string() });
    etcd.ask("/v3/kv/compaction", compact).await;
    let mut missing = vec!["k".to_owned()];
    store.watch_for(&mut missing, before).await.unwrap();
    assert_eq!(missing, ["k"], "it is to look again");
    let (got, set) = tokio::join!(store.get("k", TEST_TIMEOUT), other.set("k", b"v"));
    set.unwrap();
    assert_eq!(got.unwrap(), "v");
}

#[tokio::test]
async fn a_wrong_password_and_missing_permissions_are_told_and_what_to_do() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    for (path, request) in [
        (
            "/v3/auth/user/add",
            json!({ "name": "root", "password": "r" }),
        ),
        (
            "/v3/auth/user/grant",
            json!({ "user": "root", "role": "root" }),
        ),
        (
            "/v3/auth/user/add",
            json!({ "name": "w", "password": "right" }),
        ),
        ("/v3/auth/role/add", json!({ "name": "group" })),
        (
            "/v3/auth/role/grant",
            json!({ "name": "group", "perm": { "permType": "READWRITE",
                "key": transaction::encoded("test/mine/"),
                "range_end": transaction::encoded("test/mine0") } }),
        ),
        (
            "/v3/auth/user/grant",
            json!({ "user": "w", "role": "group" }),
        ),
        ("/v3/auth/enable", json!({})),
    ] {
        etcd.ask(path, request).await;
    }
    let password = etcd.scratch.path().join("store").with_extension("password");
    let (right, setting) = (&password, format!("?password-file={}", password.display()));
    std::fs::write(right, "right\n").unwrap();

    let mine = etcd.place("w@", &format!("mine{setting}"));
    let store = EtcdStore::open(&mine, TEST_TIMEOUT).await.unwrap();
    store.set("k", b"v").await.unwrap();
    // A token that etcd does not know any more is replaced.
    store.era.gateway().spoil_token();
    assert_eq!(store.get("k", TEST_TIMEOUT).await.unwrap(), "v");

    let denied = |opened: Result<EtcdStore, StoreError>| match opened.unwrap_err() {
        error @ StoreError::Denied { .. } => error.to_string(),
        other => panic!("{other}"),
    };
    let other = etcd.place("w@", &format!("other{setting}"));
    let words = denied(EtcdStore::open(&other, TEST_TIMEOUT).await);
    assert!(words.contains("readwrite"), "{words}");
    let nobody = denied(EtcdStore::open(&etcd.place("", "mine"), TEST_TIMEOUT).await);
    assert!(nobody.contains("etcd://user@"), "{nobody}");
    std::fs::write(right, "wrong").unwrap();
    let wrong = etcd.place("w@", &format!("mine{setting}"));
    let words = denied(EtcdStore::open(&wrong, TEST_TIMEOUT).await);
    assert!(words.contains("FARREF_ETCD_PASSWORD"), "{words}");
    assert!(!words.contains("wrong"), "no password is told: {words}");
    std::fs::remove_file(right).unwrap();
    let missing = EtcdStore::open(&wrong, TEST_TIMEOUT).await.unwrap_err();
    assert!(matches!(missing, StoreError::Setup { .. }), "{missing}");
}

#[tokio::test]
async fn an_etcd_with_tls_is_used_if_it_is_trusted() {
    let Some(etcd) = Etcd::start(true) else {
        return;
    };
    let (ca, cert, key) = (
        etcd.scratch.file("ca.pem"),
        etcd.scratch.file("server.pem"),
        etcd.scratch.file("server.key"),
    );
    let mine = format!("&cert={cert}&key={key}");
    let trusting = etcd.place("", &format!("a?ca={ca}{mine}"));
    let store = EtcdStore::open(&trusting, TEST_TIMEOUT).await.unwrap();
    store.set("k", b"v").await.unwrap();
    assert_eq!(store.get("k", TEST_TIMEOUT).await.unwrap(), "v");

    let other_ca = etcd.scratch.file("other_ca.pem");
    let distrusting = etcd.place("", &format!("a?ca={other_ca}{mine}"));
    let error = EtcdStore::open(&distrusting, TEST_TIMEOUT)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::NotEtcd { .. }), "{error}");
    assert!(error.to_string().contains("`ca`"), "{error}");
    // Who shows no certificate is not let in.
    let unknown = etcd.place("", &format!("a?ca={ca}"));
    EtcdStore::open(&unknown, SHORT).await.unwrap_err();
    let missing = etcd.place("", "a?ca=/nowhere/ca.pem");
    let error = EtcdStore::open(&missing, TEST_TIMEOUT).await.unwrap_err();
    assert!(matches!(error, StoreError::Setup { .. }), "{error}");
    let clear = format!("etcd://127.0.0.1:{}/a", etcd.port).parse().unwrap();
    // It is tried until the timeout, which leaves time for one attempt on a busy machine.
    let opened = EtcdStore::open(&clear, 10 * SHORT).await;
    let error = opened.unwrap_err();
    assert!(matches!(error, StoreError::NotEtcd { .. }), "{error}");
    assert!(error.to_string().contains("etcds://"), "{error}");
}
