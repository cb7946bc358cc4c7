//! A process of the workload: joins the group, carries out its program, and does what the driver says.
//!
//! The driver writes words to its standard input, one per line, and reads what it answers from its standard output:
//!
//! | the driver says | the worker does | and answers |
//! | --- | --- | --- |
//! | | joins | `joined` |
//! | `quiet` | begins nothing more and waits for what it has begun | `quiet` |
//! | `let-go` | drops all references and waits until nothing is left | `settled` |
//! | `end` | shuts down, with all others | ends, with 0 |
//! | `leave` | leaves the group | ends, with 0 |

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use farref::{Error, MemberEvent, Tls, Worker, WorkerEnd};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::history::{self, Event, Sample};
use super::pool;
use super::probe;
use super::program;
use super::settings::{LANES, Settings};
use farref_group::token_from_environment;

/// The exit code of a worker that the others have declared dead.
pub(super) const EVICTED: i32 = 70;
/// Of one that saw no majority of its group any more.
pub(super) const IN_MINORITY: i32 = 71;
/// Of one whose driver is gone.
const ALONE: i32 = 73;

/// How often a worker notes how it is.
pub(super) const SAMPLING: Duration = Duration::from_millis(500);
/// How long what was let go may take to be freed everywhere.
const SETTLING: Duration = Duration::from_secs(40);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(50);

/// What the driver says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Quiet,
    LetGo,
    End,
    Leave,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::LetGo => "let-go",
            Self::End => "end",
            Self::Leave => "leave",
        }
    }

    fn read(word: &str) -> Option<Self> {
        let all = [Self::Quiet, Self::LetGo, Self::End, Self::Leave];
        all.into_iter().find(|order| order.word() == word.trim())
    }
}

/// What a worker answers.
pub(super) const JOINED: &str = "joined";
pub(super) const QUIET: &str = "quiet";
pub(super) const SETTLED: &str = "settled";

/// What the process of a worker does.
pub(super) async fn be_a_worker(settings: Settings) -> anyhow::Result<ExitCode> {
    // Nothing to do for somebody who is gone.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Beside the history: what the runtime says of connections and members, for whoever asks why.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    history::open(&settings.folder, settings.life)?;
    let orders = listen().context("cannot listen to the driver")?;
    let me = join(&settings).await?;
    history::note(Event::Joined {
        worker: settings.worker.clone(),
    });
    say(JOINED);
    let sampling = tokio::spawn(keep_sampling(me.clone()));
    let ended = live(&me, &settings, orders).await;
    sampling.abort();
    let how = match &ended {
        Ok(()) => "well".to_owned(),
        Err(error) => error.to_string(),
    };
    history::note(Event::Over { how });
    Ok(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Evicted { .. }) => ExitCode::from(EVICTED as u8),
        Err(Error::Minority { .. }) => ExitCode::from(IN_MINORITY as u8),
        Err(error) => {
            eprintln!("{}, life {}: {error}", settings.worker, settings.life);
            ExitCode::FAILURE
        }
    })
}

async fn join(settings: &Settings) -> anyhow::Result<Worker> {
    let mut builder = Worker::builder(&settings.worker)
        .rendezvous(&settings.rendezvous)
        .store_is_hosted_elsewhere()
        .token(token_from_environment().unwrap_or_default())
        .unix_sockets(false)
        .peer_timeout(settings.peer_timeout())
        .require_majority(true)
        .call_timeout(settings.limit())
        .fail_on_leaks(true)
        .leak_grace(Duration::from_secs(5));
    if let Some(route) = settings.route {
        builder = builder.port(route.listen).advertise_port(route.advertise);
    }
    if let Some(tls) = Tls::from_env()? {
        builder = builder.tls(tls);
    }
    let joined = builder.join().await;
    joined.with_context(|| format!("{} could not join", settings.worker))
}

/// Works until it is told to end, or is out of the group.
async fn live(
    me: &Worker,
    settings: &Settings,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> farref::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        lanes.spawn(program::run(
            me.clone(),
            settings.clone(),
            lane,
            stopped.clone(),
        ));
    }
    let mut members = me.watch_members();
    loop {
        let order = tokio::select! {
            order = orders.recv() => order,
            event = members.next() => match event {
                Some(MemberEvent::Ended(end)) => {
                    end_lanes(&stop, &mut lanes).await;
                    return out_of_group(me, settings, end);
                }
                Some(_) => continue,
                None => return out_of_group(me, settings, WorkerEnd::Stopped),
            },
        };
        match order {
            Some(Order::Quiet) => {
                end_lanes(&stop, &mut lanes).await;
                history::note(Event::Quiet);
                say(QUIET);
            }
            Some(Order::LetGo) => {
                pool::close();
                history::note(Event::Settled(settle(me).await));
                say(SETTLED);
            }
            Some(Order::End) => return me.shutdown().await,
            Some(Order::Leave) => {
                end_lanes(&stop, &mut lanes).await;
                pool::close();
                history::note(Event::Leaving);
                return me.leave().await;
            }
            // Whoever reads standard input ends the process when there is no more to read.
            None => return out_of_group(me, settings, WorkerEnd::Stopped),
        }
    }
}

async fn end_lanes(stop: &watch::Sender<bool>, lanes: &mut JoinSet<()>) {
    stop.send_replace(true);
    while let Some(ended) = lanes.join_next().await {
        if let Err(error) = ended {
            eprintln!("a part of the workload panicked: {error}");
            std::process::exit(1);
        }
    }
}

/// How the worker came to be out of its group, as an error.
fn out_of_group(me: &Worker, settings: &Settings, end: WorkerEnd) -> farref::Result<()> {
    let name = settings.worker.as_str().into();
    match end {
        WorkerEnd::ShutDown | WorkerEnd::Left => Ok(()),
        WorkerEnd::Minority => {
            let alive = me.peers().len();
            Err(Error::Minority {
                name,
                left: alive,
                of: alive,
            })
        }
        // Why does not matter to the checker: none of these may come without a cause.
        _ => Err(Error::Evicted { name }),
    }
}

/// Waits until nothing is left, for as long as that may take. What is left then.
async fn settle(me: &Worker) -> Sample {
    let began = Instant::now();
    loop {
        let sample = sample(me);
        let Sample {
            references,
            open_calls,
            contexts,
            values,
            memory: _,
        } = sample;
        let left = references + open_calls + contexts + values;
        if left == 0 || began.elapsed() > SETTLING || !me.is_member() {
            return sample;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn keep_sampling(me: Worker) {
    loop {
        history::note(Event::Sampled(sample(&me)));
        tokio::time::sleep(SAMPLING).await;
    }
}

fn sample(me: &Worker) -> Sample {
    let snapshot = me.snapshot();
    Sample {
        memory: memory(),
        references: snapshot.references_in_all as u64,
        open_calls: u64::from(snapshot.open_calls),
        contexts: u64::from(snapshot.contexts),
        values: probe::count(),
    }
}

/// Of this process, in KiB; 0 where the system does not say.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// What the driver says, as it comes.
fn listen() -> std::io::Result<mpsc::UnboundedReceiver<Order>> {
    let (sender, orders) = mpsc::unbounded_channel();
    let listen = move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else {
                break;
            };
            if let Some(order) = Order::read(&line) {
                let _ = sender.send(order);
            }
        }
        std::process::exit(ALONE);
    };
    std::thread::Builder::new()
        .name("orders".to_owned())
        .spawn(listen)?;
    Ok(orders)
}

/// Answers the driver. One that is gone is noticed by whoever reads from it.
fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_understood_and_nothing_else_is() {
        for order in [Order::Quiet, Order::LetGo, Order::End, Order::Leave] {
            assert_eq!(Order::read(&format!("{}\n", order.word())), Some(order));
        }
        assert_eq!(Order::read("dance"), None);
    }

    #[test]
    fn a_process_knows_how_much_memory_it_has() {
        assert!(!cfg!(target_os = "linux") || memory() > 100);
    }
}
