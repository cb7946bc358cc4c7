//! Entry point for fuzzers: two ends of a session, whose connection breaks, repeats and holds back frames, and says what
//! nobody said.

use std::collections::VecDeque;
use std::time::Duration;

use farref_proto::{Frame, GroupId, Lane, NodeId, Session, SessionConfig, Time};

/// One end, what is on its way to it, and what it has been given.
struct End {
    session: Session<u64>,
    coming: VecDeque<Frame<u64>>,
    enqueued: [u64; 3],
    given: [u64; 3],
}

/// Each byte is something that happens, some with another one behind it. However that goes, each lane gives every frame
/// once and in order; and when all is well again it gives all of them.
pub fn session(data: &[u8]) {
    let nodes = [NodeId::new(1, 1), NodeId::new(2, 1)];
    let end = |me: usize| End {
        session: Session::new(
            nodes[me],
            nodes[1 - me],
            GroupId(7),
            SessionConfig::default(),
            Time(0),
        ),
        coming: VecDeque::new(),
        enqueued: [0; 3],
        given: [0; 3],
    };
    let mut ends = [end(0), end(1)];
    let mut now = Time(0);
    let mut data = data.iter().copied();
    while let Some(byte) = data.next() {
        let (what, side, lane) = (
            byte & 7,
            usize::from(byte >> 3 & 1),
            usize::from(byte >> 4) % 3,
        );
        match what {
            0 => enqueue(&mut ends[side], lane),
            1 => transmit(&mut ends, side, now),
            2 => deliver(&mut ends[side], now),
            3 => lose(&mut ends, now),
            4 => connect(&mut ends, now),
            5 => {
                // What came before comes again.
                if let Some(frame) = ends[side].coming.front().cloned() {
                    ends[side].coming.push_back(frame);
                }
            }
            6 => {
                now += Duration::from_millis(u64::from(data.next().unwrap_or(1)) * 20);
                for end in &mut ends {
                    end.session.handle_timeout(now);
                    while end.session.poll_event().is_some() {}
                }
            }
            _ => forge(&mut ends, side, now, data.by_ref()),
        }
    }
    for _ in 0..2 {
        lose(&mut ends, now);
        connect(&mut ends, now);
        let mut quiet = false;
        while !quiet {
            for side in [0, 1] {
                transmit(&mut ends, side, now);
            }
            quiet = ends.iter().all(|end| end.coming.is_empty());
            for end in &mut ends {
                deliver(end, now);
            }
        }
    }
    assert_eq!(ends[0].enqueued, ends[1].given, "frames are missing");
    assert_eq!(ends[1].enqueued, ends[0].given, "frames are missing");
}

fn enqueue(end: &mut End, lane: usize) {
    let number = end.enqueued[lane];
    end.session.enqueue(Lane::ALL[lane], number, 8);
    end.enqueued[lane] += 1;
}

/// What one end has to say is on its way.
fn transmit(ends: &mut [End; 2], side: usize, now: Time) {
    while let Some(frame) = ends[side].session.poll_transmit(now) {
        ends[1 - side].coming.push_back(frame);
    }
}

fn deliver(end: &mut End, now: Time) {
    let Some(frame) = end.coming.pop_front() else {
        return;
    };
    match end.session.handle_frame(now, frame) {
        Ok(Some((lane, number))) => {
            let given = &mut end.given[lane.index()];
            assert_eq!(number, *given, "the {lane} lane is out of order");
            *given += 1;
        }
        Ok(None) => {}
        // What an agent does: it gives the connection up.
        Err(_) => {
            end.session.connection_lost(now);
            end.coming.clear();
        }
    }
}

fn lose(ends: &mut [End; 2], now: Time) {
    for end in ends {
        end.session.connection_lost(now);
        end.coming.clear();
    }
}

fn connect(ends: &mut [End; 2], now: Time) {
    let [left, right] = ends;
    for end in [&mut *left, &mut *right] {
        end.coming.clear();
    }
    let hellos = [left, right].map(|end| end.session.connection_opened(now));
    let [left, right] = hellos;
    let greeted = ends[0].session.handle_hello(now, &right);
    assert!(greeted.is_ok(), "{greeted:?}");
    let greeted = ends[1].session.handle_hello(now, &left);
    assert!(greeted.is_ok(), "{greeted:?}");
}

/// Somebody says something in the other end's place. It is refused, or says nothing new: what would be new is taken out,
/// because nobody can tell it from what the other end says.
fn forge(ends: &mut [End; 2], side: usize, now: Time, data: impl Iterator<Item = u8>) {
    let bytes: Vec<u8> = data.take(12).collect();
    let Ok(frame) = postcard::from_bytes::<Frame<u64>>(&bytes) else {
        return;
    };
    let sent = ends[side].enqueued;
    let end = &mut ends[side];
    let acknowledges = frame
        .acks()
        .0
        .iter()
        .zip(sent)
        .any(|(acked, sent)| *acked <= sent && *acked > 0);
    let is_new = match &frame {
        Frame::Data { lane, seq, .. } => *seq == end.given[lane.index()],
        _ => false,
    };
    if acknowledges || is_new {
        return;
    }
    if end.session.handle_frame(now, frame).is_err() {
        lose(ends, now);
    }
}
