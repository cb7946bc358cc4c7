//! Entry point for fuzzers: what etcd answers, or whoever is in its place.

use super::gateway::Refusal;
use super::http::Connection;
use super::transaction::Done;

/// Bytes that come on a connection to etcd, answer after answer.
pub fn etcd_answers(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let Ok(runtime) = runtime else {
        panic!("the fuzzer has no runtime");
    };
    runtime.block_on(async {
        let mut connection = Connection::over(std::io::Cursor::new(data.to_vec()));
        while let Ok(answer) = connection.head().await {
            let Ok(body) = connection.body(&answer).await else {
                return;
            };
            drop(Refusal::read(&body));
            if let Ok(answer) = serde_json::from_slice(&body) {
                drop(Done::read(&answer));
            }
        }
    });
}
