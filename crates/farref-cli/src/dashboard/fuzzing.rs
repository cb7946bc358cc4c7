//! Entry point for fuzzers: what a browser says to the dashboard, or whoever is in its place.

use std::io::Cursor;
use std::net::SocketAddr;

use super::http::{Connection, Request, Response};
use super::server::{Door, Source, answer, is_loopback};

/// Answers with what it is asked about.
struct Echo;

impl Source for Echo {
    fn find(&self, name: &str, request: &Request) -> Option<Response> {
        let about = request.parameter("q")?;
        Some(Response::new("text/plain", format!("{name} {about}")))
    }
}

/// Bytes that come on a connection, request after request. They may know the key: it is `key`. Whoever is answered has said it, and
/// has called this by a name of this machine (DS-1, DS-3). What the views show is made of other things than what is asked, and has tests
/// of its own.
pub fn dashboard_requests(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let Ok(runtime) = runtime else {
        panic!("the fuzzer has no runtime");
    };
    let door = Door::new(SocketAddr::from(([127, 0, 0, 1], 1)), "key".to_owned());
    let stream = tokio::io::join(Cursor::new(data), tokio::io::sink());
    let serving = Connection::new(stream).serve(|request| {
        let answered = answer(&door, &Echo, request);
        if answered.is_ok() {
            assert!(request.path.starts_with("/key/"), "{request:?}");
            assert!(
                request.host.as_deref().is_some_and(is_loopback),
                "{request:?}"
            );
        }
        answered
    });
    runtime.block_on(serving);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also that which fuzzers found.
    #[test]
    fn the_fuzzers_inputs_do_not_make_the_dashboard_panic() {
        for seed in farref_testkit::seeds("dashboard_requests") {
            dashboard_requests(seed.bytes);
        }
    }

    #[test]
    fn no_request_makes_the_dashboard_panic() {
        let request = b"GET /key/data?q=a%20b+%zz&q=2 HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\n\r\n";
        let mut random = fastrand::Rng::with_seed(21);
        for _ in 0..5_000 {
            let mut input = request.repeat(2);
            for _ in 0..random.usize(0..4) {
                let at = random.usize(..input.len());
                input[at] = random.u8(..);
            }
            dashboard_requests(&input);
        }
    }
}
