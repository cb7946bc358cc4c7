//! D5: what is late is waited for, and nothing is sent instead of it.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::agent::Message;
use tokio::sync::Notify;

use super::{Kept, KeptRRef as _, LATE, fresh, is_freed};
use crate::channels::{self, End, Fate, Fates, is_answer};

/// So many calls of one peer at once: the fewest that can be set.
const ACCEPTED: usize = 64;

/// Calls that are carried out, and the most that there were.
static AT_ONCE: Mutex<(usize, usize)> = Mutex::new((0, 0));
static TURN: Notify = Notify::const_new();

#[farref::remote(name = "seam::be_counted")]
async fn be_counted() {
    {
        let mut at_once = AT_ONCE.lock().unwrap();
        at_once.0 += 1;
        at_once.1 = at_once.1.max(at_once.0);
        // All are here that may be. If more are let in, they come meanwhile.
        if at_once.0 == ACCEPTED {
            TURN.notify_waiters();
        }
    }
    let _ = tokio::time::timeout(LATE / 20, TURN.notified()).await;
    AT_ONCE.lock().unwrap().0 -= 1;
}

/// The second worker accepts a few calls, and what it says is late.
async fn narrow(which: fn(&Message) -> bool) -> Result<[farref::Worker; 2]> {
    let late = Fates::default();
    late.all(which, Fate::Late(Duration::from_millis(2)));
    let ends = [End::default(), End::with(&late)];
    let set_up = |builder: farref::WorkerBuilder| {
        builder
            .fail_on_leaks(true)
            .max_calls_per_peer(u32::try_from(ACCEPTED).unwrap_or(u32::MAX))
    };
    channels::group_with(ends, set_up).await
}

#[tokio::test]
async fn calls_whose_answers_are_late_are_no_more_than_the_callee_accepts() -> Result<()> {
    let workers = narrow(is_answer).await?;
    let peer = workers[0].peer("w1")?;
    let calls: Vec<_> = (0..10 * ACCEPTED)
        .map(|_| be_counted::on(&peer).start())
        .collect();
    for call in calls {
        call.await?;
    }
    let (now, most) = *AT_ONCE.lock().unwrap();
    ensure!(now == 0 && most <= ACCEPTED, "{most} at once");
    channels::end(workers).await
}

/// The values stay, so the calls are not answered: that there is room again is said by itself.
#[tokio::test]
async fn calls_that_stay_are_all_made_though_the_word_of_room_is_late() -> Result<()> {
    let workers = narrow(|message| matches!(message, Message::Credit { .. })).await?;
    let peer = workers[0].peer("w1")?;
    let numbers: Vec<_> = (0..10 * ACCEPTED).map(|_| fresh()).collect();
    let make = |&number: &u64| Kept::new_on(&peer, number).remote();
    let kept: Vec<_> = numbers.iter().map(make).collect();
    for (kept, number) in kept.iter().zip(&numbers) {
        ensure!(kept.number().await? == *number);
    }
    drop(kept);
    for number in numbers {
        is_freed(number).await?;
    }
    channels::end(workers).await
}
