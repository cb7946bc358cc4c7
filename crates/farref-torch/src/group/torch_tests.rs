//! The store and Gloo against PyTorch itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use farref::{Store, StoreDialect, StoreError, StoreServer, TcpStoreClient};
use farref_testkit::{TEST_TIMEOUT, free_port};
use tokio::task::JoinSet;

use super::{GroupStore, Place, arrive};
use crate::gloo::GlooDialect;
use crate::torch_python::{interpreter, version};

/// A Python process with PyTorch that is told things and says things, a line at a time.
struct Torch {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Torch {
    fn start(script: &str, arguments: &[String]) -> Self {
        let mut process = Command::new(interpreter())
            .args(["-W", "ignore", "-c", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it has ended: {line:?}");
        line.trim_end().to_owned()
    }

    /// Has an expression evaluated.
    fn ask(&mut self, expression: &str) -> String {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{expression}").unwrap();
        input.flush().unwrap();
        self.line()
    }

    fn finish(mut self) {
        self.input = None;
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn dialect_of(version: &str) -> StoreDialect {
    match version.starts_with("1.") {
        true => StoreDialect::Old,
        false => StoreDialect::Greeted,
    }
}

/// Hosts a store, and evaluates what it reads.
const HOST: &str = r#"
import datetime, sys, torch
from torch.distributed import PrefixStore, TCPStore
store = TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=120), False)
print(store.port, flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"#;

#[tokio::test]
async fn a_store_that_pytorch_hosts_can_be_used() {
    let Some(version) = version() else {
        return;
    };
    let mut torch = Torch::start(HOST, &[]);
    let port = torch.line().parse().unwrap();
    let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap();
    assert_eq!(client.dialect(), dialect_of(version));
    assert_eq!(client.clients_dialect().await.unwrap(), dialect_of(version));

    client.set("k", b"v").await.unwrap();
    assert_eq!(torch.ask("store.get('k')"), "b'v'");
    assert_eq!(torch.ask("store.set('p', 'q')"), "None");
    assert_eq!(client.try_get("p").await.unwrap().unwrap(), "q");
    assert_eq!(client.try_get("missing").await.unwrap(), None);
    assert_eq!(client.add("n", 5).await.unwrap(), 5);
    assert_eq!(torch.ask("store.add('n', -2)"), "3");
    assert_eq!(client.try_get("n").await.unwrap().unwrap(), "3");
    for (expected, desired, value) in [("", "a", "a"), ("", "b", "a"), ("a", "b", "b")] {
        let value_after = client.compare_set("c", expected.as_bytes(), desired.as_bytes());
        assert_eq!(value_after.await.unwrap(), value);
    }
    assert_eq!(torch.ask("store.get('c')"), "b'b'");
    assert!(client.delete("c").await.unwrap());
    assert!(!client.delete("c").await.unwrap());
    let large = vec![b'x'; 3 << 20];
    client.set("large", &large).await.unwrap();
    assert_eq!(
        torch.ask("len(store.get('large'))"),
        large.len().to_string()
    );
    assert_eq!(client.try_get("large").await.unwrap().unwrap(), large);

    // Waiting in vain, and then for something that comes.
    let error = client
        .get("late", Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Timeout { missing, .. } if missing == ["late"]));
    assert_eq!(torch.ask("store.add('still there', 1)"), "1");
    let waiting = client.get("late", TEST_TIMEOUT);
    let setting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::task::spawn_blocking(move || {
            assert_eq!(torch.ask("store.set('late', 'here')"), "None");
            torch
        })
        .await
        .unwrap()
    };
    let (got, torch) = tokio::join!(waiting, setting);
    assert_eq!(got.unwrap(), "here");

    // Who waits in PyTorch is not woken by others who look for the same.
    let asking = tokio::task::spawn_blocking(move || {
        let mut torch = torch;
        assert_eq!(torch.ask("store.get('awaited')"), "b'now'");
        torch
    });
    for _ in 0..10 {
        assert_eq!(client.try_get("awaited").await.unwrap(), None);
        let patience = Duration::from_millis(20);
        assert!(client.get("awaited", patience).await.is_err());
    }
    client.set("awaited", b"now").await.unwrap();
    let mut torch = asking.await.unwrap();
    assert_eq!(client.arrive().await.unwrap(), 1);
    assert_eq!(
        torch.ask("PrefixStore('k', store) and store.get('k')"),
        "b'v'"
    );
    torch.finish();
}

/// A rank of a static group, in the very steps of `init_rpc` up to where RPC begins; and one round of
/// shutting down.
const RANK: &str = r#"
import datetime, sys, torch
import torch.distributed as dist
from torch.distributed.rpc import backend_registry as registry
rank, world, port, hosts = map(int, sys.argv[1:5])
name = "worker%d" % rank
timeout = datetime.timedelta(seconds=120)
tcp = dist.TCPStore("127.0.0.1", port, world, bool(hosts), timeout)
store = dist.PrefixStore("rpc_prefix_0", tcp)
group = registry._init_process_group(store, rank, world)
registry._tensorpipe_exchange_and_check_all_device_maps(name, 0, {}, [], group)
assert store.compare_set("rpcIsStaticGroup", "", "true") == b"true"
store.set("names/%d" % rank, name)
names = [store.get("names/%d" % other).decode() for other in range(world)]
store.set("addrs/" + name, "uv://127.0.0.1:%d" % (1000 + rank))
addresses = [store.get("addrs/" + other).decode() for other in names]
group.barrier().wait()
store.add("shutdown/ACTIVE_CALLS_ID_1", rank)
if store.add("shutdown/PROCESS_COUNT_ID_1", 1) == world:
    store.set("shutdown/READY_ID_1", "")
store.wait(["shutdown/READY_ID_1"], timeout)
print(names, addresses, store.get("shutdown/ACTIVE_CALLS_ID_1"), flush=True)
sys.stdin.read()
"#;

/// Enters with the given ranks in this process, and all others in Python.
async fn static_group(world: u16, ours: &[u16], dialect: GlooDialect) {
    let (server, port) = match ours.contains(&0) {
        true => {
            let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
            let port = server.local_addr().port();
            (Some(server), port)
        }
        // PyTorch hosts it.
        false => (None, free_port().unwrap()),
    };
    let mut torches = Vec::new();
    for rank in (0..world).filter(|rank| !ours.contains(rank)) {
        let hosts = u16::from(rank == 0);
        let arguments = [rank, world, port, hosts].map(|number| number.to_string());
        torches.push(Torch::start(RANK, &arguments));
    }
    let mut ranks = JoinSet::new();
    for id in ours.iter().copied() {
        ranks.spawn(async move {
            let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
                .await
                .unwrap();
            assert_eq!(arrive(&client, world, TEST_TIMEOUT).await.unwrap(), dialect);
            let place = Place {
                name: format!("worker{id}"),
                id,
                world: Some(world),
                base: String::new(),
                prefix: 0,
                rounds_before: 0,
                patience: TEST_TIMEOUT,
            };
            let group_store = GroupStore::new(Arc::new(client), place).unwrap();
            let ip = [127, 0, 0, 1].into();
            let address = format!("uv://127.0.0.1:{}", 1000 + id);
            let (members, mut gloo) = group_store
                .enter_static(dialect, ip, &address)
                .await
                .unwrap();
            for (rank, member) in (0u16..).zip(&members) {
                assert_eq!((member.id, &member.name), (rank, &format!("worker{rank}")));
                let address = format!("uv://127.0.0.1:{}", 1000 + rank);
                assert_eq!(member.address, address);
            }
            assert_eq!(members.len(), usize::from(world));
            gloo.barrier(TEST_TIMEOUT).await.unwrap();
            gloo.close().await;
            let all = u64::from(world) * u64::from(world - 1) / 2;
            assert_eq!(group_store.round(1, id.into()).await.unwrap(), all);
        });
    }
    ranks.join_all().await;
    let lines = tokio::task::spawn_blocking(move || {
        let lines: Vec<_> = torches.iter_mut().map(Torch::line).collect();
        torches.into_iter().for_each(Torch::finish);
        lines
    });
    for line in lines.await.unwrap() {
        for rank in 0..world {
            assert!(line.contains(&format!("'worker{rank}'")), "{line}");
            assert!(
                line.contains(&format!("'uv://127.0.0.1:{}'", 1000 + rank)),
                "{line}"
            );
        }
        let all = world * (world - 1) / 2;
        assert!(line.ends_with(&format!("b'{all}'")), "{line}");
    }
    drop(server);
}

#[tokio::test]
async fn a_static_group_of_pytorch_is_entered() {
    let Some(version) = version() else {
        return;
    };
    let dialect = GlooDialect::from(dialect_of(version));
    // In the middle, and as the host with another of our kind.
    let mut groups = vec![(3, &[1][..]), (4, &[0, 2])];
    if std::env::var_os("FARREF_TORCH_PLANS").is_some_and(|which| which == "all") {
        // As one of two, as the last one, as the only one of our kind that hosts.
        groups.extend([(2, &[1][..]), (3, &[2]), (2, &[0]), (3, &[0])]);
    }
    for (world, ours) in groups {
        static_group(world, ours, dialect).await;
    }
}
