//! Programs that speak the wire and mean harm: strangers who have no token, and members of the group gone bad.
//!
//! While they work, two honest workers call each other, make values, hand references on and keep some. At the end all of
//! that has gone on without an error, what the hostile ones did is counted and in the log with its reason, no worker has
//! grown by more than it may, and nothing is left behind.

pub(crate) mod honest;
mod members;
mod strangers;
mod wire;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref_proto::GroupId;
use farref_rendezvous::group::{
    Address, Card, Liveness, LivenessProbe, Plan, TokenTag, enter, key_prefix,
};
use farref_rendezvous::{Rendezvous, RendezvousError, open};
use farref_testkit::{TEST_TIMEOUT, eventually_async, free_port};

use crate::{Group, Options, Tests};
use honest::{counted, end_work, logged, rounds, work_with};
use wire::{Victim, WIRE};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "hostile_members_are_cut_off_and_change_nothing_for_the_others",
            members::test,
        ),
        (
            "strangers_are_turned_away_and_change_nothing_for_the_members",
            strangers::test,
        ),
    ]
}

const TOKEN: &str = "of this test";

/// By how much an honest worker may grow at the most, whatever it is sent: far less than it is sent.
const MOST_GROWTH: u64 = 96 << 20;

/// A group of honest processes, and members of it that are only played.
struct Scene {
    group: Group,
    victim: Victim,
    /// The played members' cards.
    played: Vec<Card>,
    /// Where those listen, and never answer.
    _silent: Vec<TcpListener>,
    began: BTreeMap<u32, u64>,
}

impl Scene {
    /// Honest workers `a` and `b`, who begin to work, and so many others.
    async fn set(played: u32) -> anyhow::Result<Self> {
        let port = free_port()?;
        let options = Options {
            unix_sockets: false,
            token: Some(TOKEN.to_owned()),
            watched: true,
            played,
            max_calls: 64,
            ..Options::default()
        };
        let listeners = (0..played).map(|_| TcpListener::bind("127.0.0.1:0"));
        let silent: Vec<TcpListener> = listeners.collect::<Result<_, _>>()?;
        let world_size = played + 3;
        let entering = (1..).zip(&silent).map(|(rank, listener)| {
            let address = listener.local_addr();
            async move { play(port, rank, world_size, Address::Tcp(address?)).await }
        });
        let entering = all(entering.collect());
        let starting = Group::start_at(port, options, &["a", "b"]);
        let (group, entered) = tokio::try_join!(starting, entering)?;
        let victim = victim(&group, &entered)?;
        let began = memory(&group)?;
        Ok(Self {
            group,
            victim,
            played: entered.into_iter().map(|(card, ..)| card).collect(),
            _silent: silent,
            began,
        })
    }

    /// Has both honest workers work with each other.
    fn work(&self) -> anyhow::Result<Vec<farref::Pending<u64>>> {
        let begin = |(on, with): (&str, &str)| {
            let call = work_with::on(&self.group.peer(on)?, with.to_owned());
            Ok(call.start())
        };
        [("a", "b"), ("b", "a")].into_iter().map(begin).collect()
    }

    /// Waits until both have gone round a few times more.
    async fn goes_on(&self) -> anyhow::Result<()> {
        for name in ["a", "b"] {
            let peer = self.group.peer(name)?;
            let before = rounds::on(&peer).await?;
            let goes_on = || async { Ok(rounds::on(&peer).await? > before + 2) };
            eventually_async("the work goes on", goes_on).await?;
        }
        Ok(())
    }

    /// How often the victim counted something, by now: for a reason that is named, or for whatever reason.
    async fn count(&self, name: &str) -> anyhow::Result<u64> {
        let counted = counted::on(&self.group.peer("a")?).await?;
        let is_meant = |key: &str| {
            let rest = key.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let meant = counted.iter().filter(|(key, _)| is_meant(key));
        Ok(meant.map(|(_, count)| count).sum())
    }

    /// How many the victim has cut off, for each reason.
    async fn counts_by_reason(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let counted = counted::on(&self.group.peer("a")?).await?;
        let reasons = counted.into_iter().filter_map(|(key, count)| {
            let reason = key.strip_prefix("farref_misbehaved_total ")?;
            Some((reason.to_owned(), count))
        });
        Ok(reasons.collect())
    }

    /// Waits until the log of the victim has lines with all of these words, and says how many.
    async fn logs(&self, words: &[&str]) -> anyhow::Result<usize> {
        let peer = self.group.peer("a")?;
        let (mut last, mut lines) = (Vec::new(), 0);
        let is_logged = eventually_async("a line in the log", async || {
            last = logged::on(&peer).await?;
            let is_meant = |line: &&String| words.iter().all(|word| line.contains(word));
            lines = last.iter().filter(is_meant).count();
            Ok(lines > 0)
        });
        let is_logged = is_logged.await;
        is_logged.with_context(|| format!("{words:?} is not in the log: {last:#?}"))?;
        Ok(lines)
    }

    /// Ends the work, which has gone well; nobody has grown too much, and nothing is left.
    async fn end(self, work: Vec<farref::Pending<u64>>) -> anyhow::Result<()> {
        for name in ["a", "b"] {
            end_work::on(&self.group.peer(name)?).await?;
        }
        for done in work {
            ensure!(done.await.context("honest work")? > 0);
        }
        let after = memory(&self.group)?;
        ensure!(self.began.keys().eq(after.keys()), "processes are missing");
        for (pid, after) in after {
            let before = &self.began[&pid];
            let grown = after.saturating_sub(*before);
            eprintln!(
                "process {pid}: {} MiB at first, {} MiB more at its peak",
                before >> 20,
                grown >> 20
            );
            ensure!(
                grown < MOST_GROWTH,
                "an honest worker has grown by {grown} bytes"
            );
        }
        self.group.finish().await
    }
}

/// The most memory that each process of a group ever had, in bytes.
fn memory(group: &Group) -> anyhow::Result<BTreeMap<u32, u64>> {
    let peak = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.context("it has no memory")?;
        let kilobytes: u64 = kilobytes.trim().trim_end_matches(" kB").parse()?;
        anyhow::Ok((pid, kilobytes << 10))
    };
    group.pids().into_iter().map(peak).collect()
}

/// Enters the group as one of its founders, without being a worker.
async fn play(
    port: u16,
    rank: u32,
    world_size: u32,
    address: Address,
) -> anyhow::Result<(Card, GroupId, Vec<Card>)> {
    /// Of no worker there was an earlier life.
    #[derive(Debug)]
    struct AllAreNew;

    impl LivenessProbe for AllAreNew {
        fn probe<'a>(
            &'a self,
            _: &'a Card,
            _: Duration,
        ) -> Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>> {
            Box::pin(async { Ok(Liveness::Gone) })
        }
    }

    let place: Rendezvous = format!("tcp://127.0.0.1:{port}").parse()?;
    let timeout = TEST_TIMEOUT;
    let opened = open(&place, false, timeout).await?;
    let plan = Plan {
        name: format!("hostile{rank}"),
        rank: Some(rank),
        world_size: Some(world_size),
        addresses: vec![address],
        host: "elsewhere".to_owned(),
        timeout,
        grace: Duration::ZERO,
        prefix: key_prefix(None),
        wire: WIRE,
        token: Some(TokenTag::of(TOKEN)),
        certificate: None,
        probe: Arc::new(AllAreNew),
    };
    let entry = enter(opened.store, plan).await?;
    let founders = entry.founders.clone().context("it is a founder")?;
    entry.directory.settle().await?;
    Ok((entry.me, entry.group, founders))
}

/// Where `a` is, and what it takes to talk to it. Whoever plays no member reads it in the store.
fn victim(group: &Group, entered: &[(Card, GroupId, Vec<Card>)]) -> anyhow::Result<Victim> {
    let (_, id, founders) = entered.first().context("nobody is played")?;
    let card = founders.iter().find(|card| card.name == "a");
    let card = card.context("`a` is no founder")?.clone();
    let other = founders.iter().find(|card| card.name == "b");
    let address = card.addresses.iter().find_map(|address| match address {
        Address::Tcp(address) => Some(*address),
        _ => None,
    });
    Ok(Victim {
        address: address.context("it listens nowhere")?,
        card,
        group: *id,
        other: other.context("`b` is no founder")?.node,
        token: group.options.token.clone().unwrap_or_default(),
    })
}

/// All of them at once.
async fn all<T: Send + 'static>(
    futures: Vec<impl Future<Output = anyhow::Result<T>> + Send>,
) -> anyhow::Result<Vec<T>> {
    let mut waiting: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in waiting.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(result) = future.as_mut().poll(context)
            {
                match result {
                    Ok(value) => *done = Some(value),
                    Err(error) => return std::task::Poll::Ready(Err(error)),
                }
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(Ok(())),
            false => std::task::Poll::Pending,
        }
    })
    .await?;
    Ok(done.into_iter().flatten().collect())
}

/// Blocking work, which speaks the wire.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}
