//! Calls that wait for a value.

use anyhow::Result;
use farref::{WaitsFor, Worker};
use tokio::sync::Notify;

use crate::cluster::{eventually, finish, pair};

/// The functions that a worker says it runs, the oldest first.
fn running(worker: &Worker) -> Vec<String> {
    let snapshot = worker.snapshot();
    snapshot
        .running
        .into_iter()
        .map(|call| call.function.replace("laws::waiting::", ""))
        .collect()
}

mod seen {
    //! What a snapshot says of calls that wait.

    use super::*;

    static GO: Notify = Notify::const_new();
    static MAKE: Notify = Notify::const_new();

    pub(crate) struct Table(u64);

    #[farref::remote]
    impl Table {
        pub(crate) async fn new() -> Self {
            Self(0)
        }

        pub(crate) async fn late() -> Self {
            MAKE.notified().await;
            Self(1)
        }

        pub(crate) async fn fill(&mut self) -> u64 {
            GO.notified().await;
            self.0 += 1;
            self.0
        }

        pub(crate) async fn get(&self) -> u64 {
            self.0
        }
    }

    /// A call in the queue of a value, or on a value that is still being made, does not run: it is listed
    /// with what it waits for, so that a deadlock can be told from work.
    #[tokio::test]
    async fn f4_a_snapshot_lists_calls_that_wait_apart_from_those_that_run() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let there = cluster.worker(1);
        let table = Table::new_on(&peer).remote();
        let late = Table::late_on(&peer).remote();
        let fill = table.fill().start();
        eventually("the method runs", || running(there).len() == 1).await?;
        let get = table.get().start();
        let early = late.get().start();
        let open = || there.snapshot().open_calls >= 3;
        eventually("all calls have arrived", open).await?;
        assert_eq!(running(there), ["seen::Table::fill"]);
        let waiting = there.snapshot().waiting;
        let waits_for = |function: &str, value: &str, what: WaitsFor| {
            waiting.iter().any(|call| {
                call.function.ends_with(function)
                    && (&*call.caller, &*call.value) == ("worker0", value)
                    && call.waits_for == what
            })
        };
        assert_eq!(waiting.len(), 2, "{waiting:?}");
        assert!(waits_for("Table::get", &table.id()?, WaitsFor::Turn));
        assert!(waits_for("Table::get", &late.id()?, WaitsFor::Value));
        let turn = waiting.iter().find(|call| !call.used_by.is_empty());
        let used_by = turn.map(|call| call.used_by.join(", ")).unwrap_or_default();
        assert_eq!(used_by, "laws::waiting::seen::Table::fill");
        GO.notify_one();
        MAKE.notify_one();
        assert_eq!((fill.await?, get.await?, early.await?), (1, 1, 1));
        assert!(there.snapshot().waiting.is_empty());
        drop((table, late));
        finish(cluster).await
    }
}
