//! Members of the group gone bad. Each makes a connection that is in order, and then one attack.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::agent::{
    Agent, CallMessage, Departure, LinkStatistics, Message, Origins, TraceContext,
};
use farref::{Codec, Peer, Worker};
use farref_proto::{
    Acks, AnswerHead, CallHead, ContextId, Control, Creation, Fingerprint, ForkId, Lane, MAX_BATCH,
    MessageId, NodeId, RRefId, Registration, Share, Target,
};
use farref_rendezvous::group::Card;
use farref_testkit::{eventually_async, run_test};

use super::honest::{Nested, measure, visit, visits};
use super::wire::{Connection, Head, Victim, frame, prefix};
use super::{Scene, blocking};
use crate::functions::{Probe, open, probes, wait_at};

/// What a worker is to do with whoever makes an attack.
enum Outcome {
    /// It is cut off, for a reason with these words, which is counted under this one.
    CutOff(&'static str, &'static str),
    /// Nothing comes of it. (It is cut off for what it does then.)
    Nothing,
}

use Outcome::{CutOff, Nothing};

type Attack = fn(&mut Connection, &Calls) -> anyhow::Result<()>;

const ATTACKS: [(&str, Outcome, Attack); 21] = [
    ("garbage", CutOff("announces", "frame"), garbage),
    (
        "a huge head",
        CutOff("announces", "frame"),
        |connection, _| Ok(connection.stream.write_all(&prefix(1 << 30, 0, 0))?),
    ),
    (
        "a frame of nothing",
        CutOff("cannot be read", "frame"),
        |connection, _| Ok(connection.stream.write_all(&prefix(0, 0, 0))?),
    ),
    (
        "huge numbers of parts",
        CutOff("announces", "frame"),
        |connection, _| Ok(connection.stream.write_all(&prefix(20, u32::MAX, 0))?),
    ),
    ("a large value that never comes", Nothing, never_comes),
    ("a value beyond all limits", Nothing, beyond_limits),
    ("one byte at a time", Nothing, drips),
    ("half a frame", Nothing, half_a_frame),
    ("the same call over and over", Nothing, replays),
    ("numbers that are not due", Nothing, skips),
    (
        "the wrong stream",
        CutOff("wrong stream", "stream"),
        wrong_stream,
    ),
    (
        "acknowledging what was never sent",
        CutOff("acknowledged", "session"),
        |connection, _| {
            let head = Head::Credit { calls: 1, bytes: 1 };
            let bytes = frame(Lane::Call, connection.next[1], Acks([99; 3]), &head, &[]);
            Ok(connection.stream.write_all(&bytes)?)
        },
    ),
    ("credit without end", Nothing, |connection, _| {
        let head = Head::Credit {
            calls: u32::MAX,
            bytes: u64::MAX,
        };
        Ok(connection.say(&head, &[])?)
    }),
    (
        "an answer that nobody asked for",
        CutOff("not outstanding", "unexpected_answer"),
        answers,
    ),
    (
        "releasing what another holds",
        CutOff("spoke for a fork", "not_holder"),
        releases_anothers,
    ),
    ("releasing too often", Nothing, releases_too_often),
    ("values that nobody created", Nothing, made_up_values),
    (
        "one value over and over",
        CutOff("forks of", "too_many_forks"),
        registers_over_and_over,
    ),
    (
        "a list beyond the limit",
        CutOff("entries in one message", "batch_too_long"),
        long_list,
    ),
    (
        "more calls than are accepted",
        CutOff("more calls open", "too_many_calls"),
        too_many_calls,
    ),
    (
        "values that claim to be larger than they are",
        Nothing,
        blow_ups,
    ),
];

pub(crate) fn test() -> anyhow::Result<()> {
    run_test(async {
        let scene = Scene::set(ATTACKS.len() as u32).await?;
        let calls = Arc::new(Calls::captured().await?);
        let work = scene.work()?;
        scene.goes_on().await?;
        let a = scene.group.peer("a")?;
        for (number, ((name, outcome, attack), card)) in
            (1..).zip(ATTACKS.iter().zip(&scene.played))
        {
            eprintln!("{name}");
            let cut_off = scene.count("farref_misbehaved_total").await?;
            ensure!(
                cut_off + 1 == number,
                "{cut_off} were cut off before `{name}`"
            );
            let reasons = scene.counts_by_reason().await?;
            let (victim, card, calls) = (scene.victim.clone(), card.clone(), Arc::clone(&calls));
            let (attack, is_cut_off) = (*attack, matches!(outcome, CutOff(..)));
            let called = card.name.clone();
            let attacking = blocking(move || {
                if is_cut_off {
                    let mut connection = Connection::open(&victim, &card, 1000)?;
                    attack(&mut connection, &calls)?;
                    return connection.is_hung_up_on();
                }
                carry_out(attack, &victim, &card, &calls)?;
                let mut again = Connection::open(&victim, &card, 2000)?;
                garbage(&mut again, &calls)?;
                again.is_hung_up_on()
            });
            attacking.await.with_context(|| (*name).to_owned())?;
            let (words, reason) = match outcome {
                CutOff(words, reason) => (*words, *reason),
                Nothing => ("announces", "frame"),
            };
            scene
                .logs(&["a worker misbehaves and is cut off", &called, words])
                .await?;
            let mut expected = reasons;
            *expected.entry(reason.to_owned()).or_default() += 1;
            let counted = scene.counts_by_reason().await?;
            ensure!(counted == expected, "{name}: {counted:?}");
            scene.goes_on().await.with_context(|| (*name).to_owned())?;
        }
        let visits = visits::on(&a).await?;
        ensure!(visits == 1, "a replayed call ran {visits} times");
        open::on(&a, "hostile".to_owned()).await?;
        // What they left here goes with them: only what the honest ones keep is left.
        let settled = || async { Ok(probes::on(&a).await? <= 2) };
        eventually_async("their values go", settled).await?;
        scene.end(work).await
    })
}

/// Calls as workers make them, to be sent by those who are none.
struct Calls {
    visit: CallMessage,
    measure: CallMessage,
    wait: CallMessage,
    make: CallMessage,
}

impl Calls {
    /// What workers put on their wire when they make these calls.
    async fn captured() -> anyhow::Result<Self> {
        Ok(Self {
            visit: capture(|peer| drop(visit::on(peer).start())).await?,
            measure: capture(|peer| {
                drop(measure::on(peer, Vec::new(), Vec::new(), Nested::Leaf).start());
            })
            .await?,
            wait: capture(|peer| drop(wait_at::on(peer, "hostile".to_owned()).start())).await?,
            make: capture(|peer| drop(Probe::new_on(peer, 5).remote())).await?,
        })
    }
}

/// The call that a worker makes to its only peer.
async fn capture(make: impl FnOnce(&Peer)) -> anyhow::Result<CallMessage> {
    #[derive(Debug)]
    struct Kept(Codec, Mutex<Vec<Message>>);

    impl Agent for Kept {
        fn codec(&self) -> &Codec {
            &self.0
        }

        fn enqueue(&self, _: NodeId, message: Message) {
            let mut kept = self.1.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(message);
        }

        fn flush(&self, _: NodeId) {}

        fn forget(&self, _: NodeId, _: Departure) {}

        fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
            Box::pin(async {})
        }

        fn links(&self) -> Vec<LinkStatistics> {
            Vec::new()
        }
    }

    let (me, peer) = (NodeId::new(0, 1), NodeId::new(1, 1));
    let members = vec![(me, "w0".to_owned()), (peer, "w1".to_owned())];
    let kept = Arc::new(Kept(Codec::Postcard, Mutex::default()));
    let agent = Arc::clone(&kept);
    let group = farref::agent::Group { me, members };
    let worker = Worker::builder("").attach(group, |_| agent).await?;
    make(&worker.peer("w1")?);
    let messages = std::mem::take(&mut *kept.1.lock().unwrap_or_else(PoisonError::into_inner));
    worker.crash().await;
    let call = messages.into_iter().find_map(|message| match message {
        Message::Call(call) => Some(call),
        _ => None,
    });
    call.context("no call was made")
}

/// A call like that one, with another target.
fn call(like: &CallMessage, target: Target) -> Head {
    Head::Call {
        head: CallHead {
            target,
            context: None,
            carried: Vec::new(),
        },
        function: like.function,
        remaining: None,
        trace: TraceContext::default(),
        callers: Vec::new(),
        origins: Origins::default(),
    }
}

fn answered(request: u64) -> Target {
    Target::Answer(MessageId(request))
}

fn garbage(connection: &mut Connection, _: &Calls) -> anyhow::Result<()> {
    // It may be cut off before it has said all.
    let _ = connection.stream.write_all(&[0xff; 4096]);
    Ok(())
}

/// Three gigabytes are announced, and a few bytes come.
fn never_comes(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let head = call(&calls.measure, answered(1));
    let mut bytes = connection.frame(Lane::Call, &head, &[]);
    bytes[8..16].copy_from_slice(&(3_u64 << 30).to_le_bytes());
    bytes.extend([0; 1024]);
    Ok(connection.stream.write_all(&bytes)?)
}

fn beyond_limits(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let head = call(&calls.measure, answered(1));
    let mut bytes = connection.frame(Lane::Call, &head, &[]);
    bytes[8..16].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    connection.stream.write_all(&bytes)?;
    // It is passed over, as long as it comes; or the connection is cut.
    for _ in 0..64 {
        if connection.stream.write_all(&[0; 1 << 20]).is_err() {
            break;
        }
    }
    Ok(())
}

fn drips(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let head = call(&calls.visit, answered(1));
    let bytes = connection.frame(Lane::Call, &head, &[]);
    for byte in &bytes[..bytes.len() - 1] {
        connection.stream.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn half_a_frame(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let head = call(&calls.visit, answered(1));
    let bytes = connection.frame(Lane::Call, &head, &[]);
    connection.stream.write_all(&bytes[..bytes.len() / 2])?;
    Ok(connection.stream.shutdown(std::net::Shutdown::Both)?)
}

/// Carries out an attack to its end, on another connection if the one in use is lost: the victim
/// gets no acknowledgements, so it replaces a connection that stands still for seconds.
fn carry_out(attack: Attack, victim: &Victim, card: &Card, calls: &Calls) -> anyhow::Result<()> {
    for attempt in 0..20 {
        let mut connection = Connection::open(victim, card, 1000 + attempt)?;
        match attack(&mut connection, calls) {
            Err(error) if error.is::<io::Error>() => {}
            carried_out => return carried_out,
        }
    }
    bail!("no connection stands")
}

/// A function runs once, however often its call comes.
fn replays(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let head = call(&calls.visit, answered(1));
    let bytes = connection.frame(Lane::Call, &head, &calls.visit.arguments.body);
    let _ = write_often(connection, &bytes).and_then(|()| connection.read_answer(1));
    // And on another connection. The victim gets no acknowledgements, so it replaces a connection
    // that a busy machine leaves standing for seconds.
    let (victim, me) = (connection.victim.clone(), connection.me.clone());
    for attempt in 0..20 {
        let mut again = Connection::open(&victim, &me, 1500 + attempt)?;
        let replayed = write_often(&mut again, &bytes).and_then(|()| {
            // With the answer to another call, all before it has been read.
            let last = call(&calls.measure, answered(2 + attempt));
            again.say(&last, &calls.measure.arguments.body)?;
            again.read_answer(0)
        });
        if replayed.is_ok() {
            return Ok(());
        }
    }
    bail!("no connection stands")
}

fn write_often(connection: &mut Connection, bytes: &[u8]) -> anyhow::Result<()> {
    for _ in 0..100 {
        connection.stream.write_all(bytes)?;
    }
    Ok(())
}

fn skips(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    connection.next[Lane::Call.index()] += 1000;
    connection.say(&call(&calls.visit, answered(1)), &[])?;
    connection.is_hung_up_on()
}

fn wrong_stream(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let bytes = connection.frame(Lane::Bulk, &call(&calls.visit, answered(1)), &[]);
    Ok(connection.stream.write_all(&bytes)?)
}

fn answers(connection: &mut Connection, _: &Calls) -> anyhow::Result<()> {
    let head = Head::Answer {
        head: AnswerHead {
            id: MessageId(0),
            carried: Vec::new(),
        },
        origins: Origins::default(),
        failure: None,
    };
    Ok(connection.say(&head, &[])?)
}

fn control(connection: &mut Connection, control: Control) -> anyhow::Result<()> {
    Ok(connection.say(&Head::Control(control), &[])?)
}

/// Tries the ids that the honest workers' values may have. One of them is held for all of the time.
fn releases_anothers(connection: &mut Connection, _: &Calls) -> anyhow::Result<()> {
    let other = connection.victim.other;
    let shares = (0..256).flat_map(|rref| {
        (0..256).map(move |fork| Share {
            rref: RRefId::new(other, rref),
            fork: ForkId::new(other, fork),
        })
    });
    let shares: Vec<Share> = shares.collect();
    for some in shares.chunks(MAX_BATCH) {
        if control(connection, Control::Release(some.to_vec())).is_err() {
            // It has found one.
            break;
        }
    }
    Ok(())
}

/// A value that the victim keeps for whoever asks.
fn create(connection: &mut Connection, calls: &Calls, counter: u64) -> anyhow::Result<Share> {
    let me = connection.me.node;
    let share = Share {
        rref: RRefId::new(me, counter),
        fork: ForkId::new(me, counter),
    };
    let Target::Stay(Creation { fingerprint, .. }) = calls.make.head.target else {
        anyhow::bail!("its result does not stay");
    };
    let head = call(&calls.make, Target::Stay(Creation { share, fingerprint }));
    connection.say(&head, &calls.make.arguments.body)?;
    Ok(share)
}

fn releases_too_often(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    // Another number than that of an attempt that was cut off after the creation.
    let counter = 1 + connection.next[Lane::Call.index()];
    let share = create(connection, calls, counter)?;
    for _ in 0..1000 {
        control(connection, Control::Release(vec![share]))?;
    }
    Ok(())
}

/// Tells of more values that are yet to be created than it may, all of them in one part of the owner's table.
fn made_up_values(connection: &mut Connection, _: &Calls) -> anyhow::Result<()> {
    let me = connection.me.node;
    let registration = |counter: u64| Registration {
        share: Share {
            rref: RRefId::new(me, 16 * counter),
            fork: ForkId::new(me, counter),
        },
        fingerprint: Fingerprint(1),
    };
    for batch in 0..100_u64 {
        let first = batch * MAX_BATCH as u64;
        let some = (first..first + MAX_BATCH as u64).map(registration);
        control(connection, Control::Register(some.collect()))?;
    }
    Ok(())
}

fn registers_over_and_over(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let Share { rref, .. } = create(connection, calls, 1)?;
    let me = connection.me.node;
    let Target::Stay(Creation { fingerprint, .. }) = calls.make.head.target else {
        anyhow::bail!("its result does not stay");
    };
    let some = (2..1000).map(|counter| Registration {
        share: Share {
            rref,
            fork: ForkId::new(me, counter),
        },
        fingerprint,
    });
    // On another lane than the creation: whichever comes first.
    control(connection, Control::Register(some.collect()))
}

fn long_list(connection: &mut Connection, _: &Calls) -> anyhow::Result<()> {
    let me = connection.me.node;
    let contexts = (0..100_000).map(|counter| ContextId::new(me, counter));
    control(connection, Control::ContextCleaned(contexts.collect()))
}

fn too_many_calls(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    for request in 0..1000 {
        let said = connection.say(
            &call(&calls.wait, answered(request)),
            &calls.wait.arguments.body,
        );
        if said.is_err() {
            break;
        }
    }
    Ok(())
}

/// Values that say that they have more elements, or go deeper, than anything.
fn blow_ups(connection: &mut Connection, calls: &Calls) -> anyhow::Result<()> {
    let form = calls.measure.arguments.body.get(..2).context("no form")?;
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let mut many = form.to_vec();
    many.extend(huge);
    let mut nothing = form.to_vec();
    nothing.push(0);
    nothing.extend(huge);
    let mut deep = form.to_vec();
    deep.extend([0, 0]);
    deep.extend([1; 60_000]);
    let mut described = vec![0xff, 0xff];
    described.extend([0x7f; 60_000]);
    let mut beside = vec![0xfe, 0xff];
    beside.extend([0xff; 60_000]);
    // Other numbers than those of an attempt that was cut off.
    let first = connection.next[Lane::Call.index()];
    for (request, body) in (first..).zip([many, nothing, deep, described, beside]) {
        connection.say(&call(&calls.measure, answered(request)), &body)?;
    }
    Ok(())
}
