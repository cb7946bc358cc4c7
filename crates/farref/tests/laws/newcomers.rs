//! Newcomers that do not fit to those who are there.

use std::time::Duration;

use anyhow::{Result, ensure};
use farref::observe::Observer;
use farref::{Error, RendezvousError, StoreServer, Worker};

use crate::PATIENCE;

/// F4: also if several come at once, who see each other on the store's list. And they do not stay on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_several_with_a_wrong_token_hear_so_and_leave_no_trace() -> Result<()> {
    let store = StoreServer::bind("127.0.0.1:0").await?;
    let join = async |name: &str, token: &str| {
        Worker::builder(name)
            .rendezvous(&format!("tcp://{}", store.local_addr()))
            .store_is_hosted_elsewhere()
            .join_timeout(Duration::from_secs(3600))
            .token(token)
            .join()
            .await
    };
    let first = join("first", "ours").await?;
    let others = async {
        tokio::join!(
            join("one", "theirs"),
            join("two", "theirs"),
            join("three", "theirs")
        )
    };
    let (one, two, three) = tokio::time::timeout(PATIENCE, others).await?;
    for joined in [one, two, three] {
        let error = joined.expect_err("it has another token");
        let Error::Rendezvous(reason) = &error else {
            panic!("{error:?}");
        };
        ensure!(
            matches!(**reason, RendezvousError::WrongToken { .. }),
            "{error:?}"
        );
    }
    let place = store.local_addr().to_string();
    let mut group = Observer::new().token("ours").group(&place).await?;
    let listed: Vec<String> = group
        .look()
        .await
        .into_iter()
        .map(|seen| seen.name)
        .collect();
    ensure!(listed == ["first"], "{listed:?}");
    first.shutdown().await?;
    Ok(())
}
