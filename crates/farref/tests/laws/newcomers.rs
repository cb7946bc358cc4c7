//! Newcomers that do not fit to those who are there: the invariants UW-1 to UW-3 are those of `runtime/unwelcome`.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::observe::Observer;
use farref::{Departure, Error, RendezvousError, StoreServer, Tls, Worker};
use farref_testkit::TEST_TIMEOUT;

use crate::certificates::Authority;

#[farref::remote(name = "newcomers::answer")]
async fn answer() -> u32 {
    42
}

/// A group that goes over from one authority to another.
struct Rotation {
    before: Authority,
    after: Authority,
    store: StoreServer,
}

impl Rotation {
    async fn new() -> Result<Self> {
        let (before, after) = (Authority::new(), Authority::new());
        fs::write(before.file("both.pem"), before.pem() + &after.pem())?;
        let store = StoreServer::bind("127.0.0.1:0").await?;
        Ok(Self {
            before,
            after,
            store,
        })
    }

    async fn join(
        &self,
        name: &str,
        by: &Authority,
        takes_both: bool,
        peer_timeout: Duration,
    ) -> Result<Worker, Error> {
        let [own, key, one] = by.issue(name, &[&format!("farref:worker/{name}")]);
        let authorities = match takes_both {
            true => self.before.file("both.pem"),
            false => one,
        };
        Worker::builder(name)
            .rendezvous(&format!("tcp://{}", self.store.local_addr()))
            .store_is_hosted_elsewhere()
            .unix_sockets(false)
            .join_timeout(Duration::from_secs(3600))
            .peer_timeout(peer_timeout)
            .tls(Tls::from_files(own, key, authorities)?)
            .join()
            .await
    }

    /// A worker that is there already, with the old certificate.
    async fn old(
        &self,
        name: &str,
        takes_both: bool,
        peer_timeout: Duration,
    ) -> Result<Worker, Error> {
        self.join(name, &self.before, takes_both, peer_timeout)
            .await
    }

    /// One that comes now, with the new certificate.
    async fn newcomer(&self, peer_timeout: Duration) -> Result<Worker, Error> {
        let newcomer = self.join("newcomer", &self.after, true, peer_timeout);
        tokio::time::timeout(TEST_TIMEOUT, newcomer)
            .await
            .expect("it is let in or not")
    }
}

/// How soon somebody is missed who should not be.
const SLOW: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(5);

/// That a member called `forgotten` and the newcomer do not take each other's certificates.
fn is_refused_by_forgotten(error: &Error) -> bool {
    let Error::Rendezvous(reason) = error else {
        return false;
    };
    matches!(&**reason, RendezvousError::Certificate { by, .. } if by == "forgotten")
}

/// UW-1: the certificates of a group are being replaced, and one worker has been forgotten. A newcomer that calls it goes, and
/// says so to the others.
#[tokio::test]
async fn f10_a_newcomer_that_an_old_member_refuses_goes_and_the_old_one_stays() -> Result<()> {
    let rotation = Rotation::new().await?;
    let first = rotation.old("first", true, SLOW).await?;
    let forgotten = rotation.old("forgotten", false, SLOW).await?;
    let newcomer = rotation.newcomer(SOON).await?;
    let departure = first.wait_for_peer("newcomer", TEST_TIMEOUT).await?.gone();

    let there = newcomer.wait_for_peer("forgotten", TEST_TIMEOUT).await?;
    let call = tokio::time::timeout(TEST_TIMEOUT, answer::on(&there).timeout(None)).await?;
    let error = call.expect_err("they cannot talk");
    ensure!(is_refused_by_forgotten(&error), "{error:?}");
    let error = newcomer.serve().await.expect_err("it is out");
    ensure!(is_refused_by_forgotten(&error), "{error:?}");
    let departure = tokio::time::timeout(TEST_TIMEOUT, departure).await??;
    ensure!(departure == Departure::Left, "{departure:?}");

    let there = first.wait_for_peer("forgotten", TEST_TIMEOUT).await?;
    ensure!(answer::on(&there).await? == 42);
    tokio::try_join!(first.shutdown(), forgotten.shutdown())?;
    Ok(())
}

/// UW-3: whoever settles what the group knows does not reach the newcomer, and so it is not let in.
#[tokio::test]
async fn f10_a_newcomer_that_was_refused_when_it_asked_is_not_in() -> Result<()> {
    let rotation = Rotation::new().await?;
    let forgotten = rotation.old("forgotten", false, SOON).await?;
    let second = rotation.old("second", true, SLOW).await?;
    let error = rotation.newcomer(SLOW).await.expect_err("it is refused");
    ensure!(is_refused_by_forgotten(&error), "{error:?}");

    let there = second.wait_for_peer("forgotten", TEST_TIMEOUT).await?;
    ensure!(answer::on(&there).await? == 42);
    tokio::try_join!(second.shutdown(), forgotten.shutdown())?;
    Ok(())
}

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
    let (one, two, three) = tokio::time::timeout(TEST_TIMEOUT, others).await?;
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
