//! Programs that can connect, and nothing else: they have no token, or speak no farref at all.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::ensure;
use farref_proto::{GroupId, NodeId};
use farref_testkit::{TEST_TIMEOUT, eventually_async, run_test};

use super::wire::{Greeting, Handshake, Purpose, Refusal, Reply, Verdict, Victim, WIRE};
use super::{Scene, blocking};
use crate::launch;

type Attack = fn(&Victim) -> anyhow::Result<()>;

/// What is done, and under which reason it is counted.
const ATTACKS: [(&str, &str, Attack); 9] = [
    ("another protocol", "garbage", |victim| {
        is_cut(victim, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    }),
    ("noise", "garbage", |victim| {
        is_cut(victim, &[0xa5; 1 << 20])
    }),
    ("a greeting of four gigabytes", "too_large", |victim| {
        let mut bytes = b"farref".to_vec();
        bytes.extend(WIRE.to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
        is_cut(victim, &bytes)
    }),
    ("a greeting that is none", "malformed", |victim| {
        let mut bytes = b"farref".to_vec();
        bytes.extend(WIRE.to_le_bytes());
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend([0xff; 8]);
        is_cut(victim, &bytes)
    }),
    ("another group", "group", |victim| {
        let greeting = Greeting::Worker {
            group: GroupId(1),
            to: victim.card.node,
            nonce: [7; 16],
        };
        is_refused(victim, &greeting, Refusal::Group)
    }),
    ("another life", "wrong_life", |victim| {
        let to = NodeId::new(victim.card.node.worker.0, 99);
        let greeting = Greeting::Worker {
            group: victim.group,
            to,
            nonce: [7; 16],
        };
        is_refused(victim, &greeting, Refusal::WrongLife(victim.card.node))
    }),
    ("a guessed token", "token", |victim| {
        let mut handshake = Handshake::new(victim.connect()?, "a guess");
        handshake.greet(&victim.greeting())?;
        let verdict = handshake.claim(&victim.claim(&victim.card, 1))?;
        ensure!(
            matches!(verdict, Verdict::Refused(Refusal::Token)),
            "{verdict:?}"
        );
        Ok(())
    }),
    ("a claim beyond all limits", "too_large", |victim| {
        let mut handshake = Handshake::new(victim.connect()?, "a guess");
        handshake.greet(&victim.greeting())?;
        handshake.stream.write_all(&u32::MAX.to_le_bytes())?;
        is_closed(&mut handshake.stream)
    }),
    // Whoever has the token can say such a thing, and takes nobody's connection with it.
    ("a session in another's name", "session", |victim| {
        let mut handshake = Handshake::new(victim.connect()?, &victim.token);
        handshake.greet(&victim.greeting())?;
        let mut claim = victim.claim(&victim.card, 1);
        claim.card.node = NodeId::new(77, 1);
        let Purpose::Main(hello) = &mut claim.purpose;
        hello.session.from = NodeId::new(78, 1);
        let verdict = handshake.claim(&claim)?;
        ensure!(
            matches!(verdict, Verdict::Refused(Refusal::Session)),
            "{verdict:?}"
        );
        Ok(())
    }),
];

/// How many connections say a byte now and then, and never come to an end: more than there may be handshakes.
const SLOW: usize = 400;

pub(crate) fn test() -> anyhow::Result<()> {
    run_test(async {
        // One that is played knows what all founders know. It goes at once: whoever is silent keeps others from joining.
        let scene = Scene::set(1).await?;
        let (victim, card) = (scene.victim.clone(), scene.played[0].clone());
        blocking(move || {
            let mut connection = super::wire::Connection::open(&victim, &card, 1000)?;
            let _ = connection.stream.write_all(&[0xff; 64]);
            connection.is_hung_up_on()
        })
        .await?;
        let work = scene.work()?;
        scene.goes_on().await?;
        let dawdling = || {
            let victim = scene.victim.clone();
            tokio::task::spawn_blocking(move || dawdle(&victim))
        };
        let slow = dawdling();
        for (name, reason, attack) in ATTACKS {
            let counter = format!("farref_refused_connections_total {reason}");
            let before = scene.count(&counter).await?;
            let victim = scene.victim.clone();
            for _ in 0..20 {
                let victim = victim.clone();
                blocking(move || attack(&victim)).await?;
            }
            let is_counted = || async { Ok(scene.count(&counter).await? >= before + 20) };
            eventually_async(name, is_counted).await?;
            // It is in the log, and not each time.
            let said = format!("reason={reason:?}");
            let lines = scene.logs(&["a connection is refused", &said]).await?;
            ensure!(lines < 20, "{name}: {lines} lines in the log");
            scene.goes_on().await?;
        }
        // Whoever has the token can be as many as it likes, and fills the log as little.
        let before = scene.count("farref_misbehaved_total frame").await?;
        let (victim, card) = (scene.victim.clone(), scene.played[0].clone());
        blocking(move || {
            (0..20).try_for_each(|number| {
                let mut card = card.clone();
                card.node = NodeId::new(1000 + number, 1);
                let mut connection = super::wire::Connection::open(&victim, &card, 1000)?;
                let _ = connection.stream.write_all(&[0xff; 64]);
                connection.is_hung_up_on()
            })
        })
        .await?;
        let is_counted =
            || async { Ok(scene.count("farref_misbehaved_total frame").await? >= before + 20) };
        let name = "all who have the token are counted";
        eventually_async(name, is_counted).await?;
        let said = ["somebody who is no member misbehaves", "frame"];
        let lines = scene.logs(&said).await?;
        ensure!(lines < 20, "{lines} lines in the log");
        scene.goes_on().await?;
        // Beside those who dawdle a worker that is in order is let in.
        let slower = dawdling();
        let newcomer = launch::Launch::addition(&scene.group, "newcomer")?.start("newcomer")?;
        scene
            .group
            .me
            .wait_for_peer("newcomer", TEST_TIMEOUT)
            .await?;
        slow.await??;
        slower.await??;
        // On a busy machine the first of them may have been hung up on before the last ones came.
        eventually_async("those who dawdle are too many", async || {
            let counter = "farref_refused_connections_total overloaded";
            let are_too_many = scene.count(counter).await? > 0;
            if !are_too_many {
                dawdling().await??;
            }
            Ok(are_too_many)
        })
        .await?;
        scene
            .logs(&["too many connections in their handshake", "overloaded"])
            .await?;
        scene.end(work).await?;
        newcomer.ended_well().await
    })
}

fn is_cut(victim: &Victim, bytes: &[u8]) -> anyhow::Result<()> {
    let mut stream = victim.connect()?;
    // It may be cut off before it has said all.
    let _ = stream.write_all(bytes);
    is_closed(&mut stream)
}

/// A reset is a way of closing, too.
fn is_closed(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}

fn is_refused(victim: &Victim, greeting: &Greeting, expected: Refusal) -> anyhow::Result<()> {
    let mut handshake = Handshake::new(victim.connect()?, "");
    match handshake.greet(greeting)? {
        Reply::Refused(refusal) if refusal == expected => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Says a byte at a time on many connections, until each is hung up on.
fn dawdle(victim: &Victim) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for _ in 0..SLOW {
        streams.push(victim.connect()?);
    }
    let mut opening = b"farref".to_vec();
    opening.extend(WIRE.to_le_bytes());
    opening.extend(400_u32.to_le_bytes());
    opening.extend([0; 400]);
    for byte in opening {
        streams.retain_mut(|stream| stream.write_all(&[byte]).is_ok());
        if streams.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    anyhow::bail!("{} were listened to all the time", streams.len())
}
