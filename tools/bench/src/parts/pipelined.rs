//! Many empty calls at once, beside as many frames through a bare socket.

use std::time::{Duration, Instant};

use super::super::bare::Echo;
use super::super::functions::{done, nothing};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::transport::Transport;

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let mut echo = Echo::start(transport.socket()).await?;
    let mut bare = Vec::new();
    for in_flight in plan.depths {
        recorder.say(&format!("a bare socket, {in_flight} frames at once"));
        let rate = echo.pipelined(in_flight, plan.time).await?.rate;
        bare.push(rate);
        recorder.add(Measurement::rate("bare_frames", "frames/s", rate).in_flight(in_flight));
    }
    drop(echo);

    let group = Group::start(transport, 2).await?;
    let peer = group.peers[0].clone();
    for (in_flight, bare) in plan.depths.into_iter().zip(bare) {
        recorder.say(&format!("{in_flight} calls at once"));
        let peer = peer.clone();
        let calls = at_once(in_flight, plan.time, move || done(nothing::on(&peer)));
        let rate = calls.await?.rate();
        recorder.add(
            Measurement::rate("pipelined_calls", "calls/s", rate)
                .in_flight(in_flight)
                .at_least("bare_frames", bare, None),
        );
    }
    group.end().await
}

/// How often something was done, and how long that took.
pub(super) struct Done {
    pub(super) count: u64,
    pub(super) elapsed: Duration,
}

impl Done {
    pub(super) fn rate(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }
}

/// So many tasks that do something again and again for a `time`.
pub(super) async fn at_once<F>(
    tasks: usize,
    time: Duration,
    something: impl Fn() -> F + Clone + Send + 'static,
) -> anyhow::Result<Done>
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let began = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let something = something.clone();
            tokio::spawn(async move {
                let mut count = 0_u64;
                while count == 0 || began.elapsed() < time {
                    something().await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(Done {
        count,
        elapsed: began.elapsed(),
    })
}
