//! Who is shown what: the page and its data, to whoever knows the key and comes from nowhere else.
//!
//! # Invariants
//!
//! - **DS-1** It listens on a loopback address, and answers only who calls it by such a name: a page that some other name
//!   leads here (DNS rebinding) is told nothing. The port may be another one, as whoever comes through `ssh -L` has it.
//! - **DS-2** It answers no other page, of another port neither: neither scripts of one (`Origin`) nor what one includes (`Sec-Fetch-Site`).
//! - **DS-3** Everything is below a key that only the printed address has.
//! - **DS-4** At most [`MAX_CONNECTIONS`] at a time.

use std::net::SocketAddr;
use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::assets;
use super::http::{Connection, Refusal, Request, Response};

const MAX_CONNECTIONS: usize = 64;

/// Where the data come from.
pub(super) trait Source: Send + Sync + 'static {
    /// What there is under a name; none if there is nothing.
    fn find(&self, name: &str, request: &Request) -> Option<Response>;
}

/// Who may see what.
#[derive(Clone)]
pub(super) struct Door {
    /// Where it listens.
    address: SocketAddr,
    key: String,
}

impl Door {
    pub(super) fn new(address: SocketAddr, key: String) -> Self {
        Self { address, key }
    }

    /// The address to open.
    pub(super) fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.key)
    }

    /// What is asked for, if it may be (DS-1 to DS-3).
    fn pass<'a>(&self, request: &'a Request) -> Result<&'a str, Refusal> {
        let host = request.host.as_deref().filter(|host| is_loopback(host));
        let host = host.ok_or(Refusal::Forbidden)?;
        let is_own = |origin: &str| origin.eq_ignore_ascii_case(host);
        if let Some(origin) = &request.origin
            && !origin.strip_prefix("http://").is_some_and(is_own)
        {
            return Err(Refusal::Forbidden);
        }
        if let Some(site) = &request.fetch_site
            && !matches!(&**site, "same-origin" | "none")
        {
            return Err(Refusal::Forbidden);
        }
        let path = request.path.strip_prefix('/').ok_or(Refusal::NotFound)?;
        let (key, name) = path.split_once('/').ok_or(Refusal::NotFound)?;
        match same(key.as_bytes(), self.key.as_bytes()) {
            true => Ok(name),
            false => Err(Refusal::NotFound),
        }
    }
}

/// Whether a host, perhaps with a port, is a name of this machine that nobody else can give it.
pub(super) fn is_loopback(host: &str) -> bool {
    let names = ["127.0.0.1", "localhost", "[::1]"];
    names.iter().any(|name| {
        let rest = host.split_at_checked(name.len());
        let rest = rest.filter(|(start, _)| start.eq_ignore_ascii_case(name));
        rest.is_some_and(|(_, rest)| match rest.strip_prefix(':') {
            Some(port) => port.parse::<u16>().is_ok(),
            None => rest.is_empty(),
        })
    })
}

/// Takes as long whatever they have in common.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).map(|(one, other)| one ^ other);
    one.len() == other.len() && differences.fold(0, |all, one| all | one) == 0
}

/// A key that nobody guesses.
pub(super) fn new_key() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| anyhow::anyhow!("the system has no random numbers for the page's key"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a key that somebody chose can stand in an address, and is not too easily guessed.
pub(super) fn parse_key(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match (16..=128).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("expected 16 to 128 letters, digits, - or _".to_owned()),
    }
}

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, door: Door, source: Arc<dyn Source>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors, mostly: some will be given back.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let connection = Connection::new(stream);
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tokio::spawn(connection.refuse(Refusal::Crowded));
            continue;
        };
        let (door, source) = (door.clone(), Arc::clone(&source));
        tokio::spawn(async move {
            let _permit = permit;
            // What is shown may take a while to put together: others are to be served meanwhile.
            connection
                .serve(|request| tokio::task::block_in_place(|| answer(&door, &*source, request)))
                .await;
        });
    }
}

pub(super) fn answer(
    door: &Door,
    source: &dyn Source,
    request: &Request,
) -> Result<Response, Refusal> {
    let name = door.pass(request)?;
    assets::find(name)
        .or_else(|| source.find(name, request))
        .ok_or(Refusal::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    struct Nothing;

    impl Source for Nothing {
        fn find(&self, name: &str, _: &Request) -> Option<Response> {
            (name == "data").then(|| Response::new("application/json", "{}"))
        }
    }

    fn asked(change: impl FnOnce(&mut Request)) -> Result<Response, Refusal> {
        let address = SocketAddr::from(([127, 0, 0, 1], 4000));
        let mut request = Request {
            path: format!("/{KEY}/data"),
            host: Some("127.0.0.1:4000".to_owned()),
            ..Request::default()
        };
        change(&mut request);
        answer(&Door::new(address, KEY.to_owned()), &Nothing, &request)
    }

    #[test]
    fn only_who_knows_the_key_is_shown_anything() {
        assert!(asked(|_| {}).is_ok());
        for path in [
            "/",
            "/data",
            "/0123456789abcdee/data",
            "/0123456789abcde/data",
            "//data",
            "",
        ] {
            let refused = asked(|request| request.path = path.to_owned());
            assert_eq!(refused, Err(Refusal::NotFound), "{path}");
        }
    }

    /// DS-1
    #[test]
    fn who_calls_it_by_a_foreign_name_is_told_nothing() {
        for host in [
            None,
            Some("evil.example:4000"),
            Some("127.0.0.1.evil.example:4000"),
            Some("127.0.0.1:"),
            Some("127.0.0.1:x"),
            Some("localhost:99999"),
            Some("localhost.evil.example"),
            Some(""),
        ] {
            let refused = asked(|request| request.host = host.map(str::to_owned));
            assert_eq!(refused, Err(Refusal::Forbidden), "{host:?}");
        }
        // Through `ssh -L`, or with the port that a browser leaves out.
        for host in [
            "LocalHost:4000",
            "127.0.0.1:8080",
            "localhost",
            "[::1]:4000",
        ] {
            let shown = asked(|request| request.host = Some(host.to_owned()));
            assert!(shown.is_ok(), "{host}");
        }
    }

    /// DS-2
    #[test]
    fn no_other_page_is_told_anything() {
        for origin in [
            "http://evil.example",
            "null",
            "https://127.0.0.1:4000",
            "http://127.0.0.1:4001",
        ] {
            let refused = asked(|request| request.origin = Some(origin.to_owned()));
            assert_eq!(refused, Err(Refusal::Forbidden), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            let refused = asked(|request| request.fetch_site = Some(site.to_owned()));
            assert_eq!(refused, Err(Refusal::Forbidden), "{site}");
        }
        assert!(asked(|request| request.origin = Some("http://127.0.0.1:4000".to_owned())).is_ok());
        // Of a page at one port, the other port is another page.
        for (origin, is_own) in [
            ("http://localhost:80", true),
            ("http://localhost:4000", false),
        ] {
            let shown = asked(|request| {
                request.host = Some("localhost:80".to_owned());
                request.origin = Some(origin.to_owned());
            });
            assert_eq!(shown.is_ok(), is_own, "{origin}");
        }
        assert!(asked(|request| request.fetch_site = Some("same-origin".to_owned())).is_ok());
    }

    #[test]
    fn a_key_is_long_and_new_each_time() {
        let [one, other] = [new_key(), new_key()].map(|key| key.expect("random numbers"));
        assert!(one.len() == 32 && one != other);
        assert!(parse_key(&one).is_ok());
        for bad in ["short", "with/a/slash/in/it", "ünïcödeünïcödeünïcöde"] {
            assert!(parse_key(bad).is_err(), "{bad}");
        }
    }
}
