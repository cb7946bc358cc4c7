//! What the program of a worker does, and what it expects of it (RR-1 to RR-3).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use farref::{Error, Peer, Worker};
use fastrand::Rng;
use tokio::time::sleep;

use crate::faults::Group;
use crate::ledger;
use crate::program::{
    Counter, CounterRRef as _, add_to, echo, expected, keep, numbers, pass_on, relay, use_kept,
    work, work_plainly,
};

/// One program: calls one after the other, from the worker with this number.
pub(crate) struct Client {
    pub(crate) group: Arc<Group>,
    pub(crate) index: usize,
    pub(crate) rng: Rng,
}

/// The worker of a program is gone, or there is nobody to call.
struct Over;

impl Client {
    pub(crate) async fn run(mut self, calls: u32) {
        for _ in 0..calls {
            sleep(Duration::from_millis(self.rng.u64(0..60))).await;
            // After a crash it goes on with the worker's next life.
            let Some(me) = self.group.worker(self.index) else {
                continue;
            };
            // Whatever is over, the next call is another one.
            let _ = self.step(&me).await;
            if ledger::is_violated() {
                return;
            }
        }
    }

    /// Any worker, be it this one.
    fn peer(&mut self, me: &Worker) -> Result<Peer, Over> {
        let names = self.group.names();
        let name = &names[self.rng.usize(..names.len())];
        me.peer(name).map_err(|error| {
            self.check_error(me, "peer", &error, false);
            Over
        })
    }

    async fn step(&mut self, me: &Worker) -> Result<(), Over> {
        let peer = self.peer(me)?;
        let token = begin();
        match self.rng.u8(..20) {
            0..4 => {
                let answer = work::on(&peer, token, self.rng.u64(0..30)).await;
                self.check(me, "work", token, answer, &expected(token), false);
            }
            4..6 => {
                let answer = work_plainly::on(&peer, token).await;
                self.check(me, "work_plainly", token, answer, &expected(token), false);
            }
            6 => {
                let limit = Duration::from_millis(self.rng.u64(0..40));
                let call = work::on(&peer, token, self.rng.u64(0..40)).timeout(limit);
                self.check(me, "limited", token, call.await, &expected(token), true);
            }
            7..9 => {
                let pending = work::on(&peer, token, self.rng.u64(0..100)).start();
                sleep(Duration::from_millis(self.rng.u64(0..50))).await;
                ledger::note(|| format!("cancels {token}"));
                drop(pending);
            }
            9..11 => {
                let size = self.rng.usize(0..self.group.most_data);
                let data: Vec<u8> = (0..size).map(|at| (at as u64 ^ token) as u8).collect();
                let answer = echo::on(&peer, token, data.clone()).await;
                self.check(me, "echo", token, answer, &data, false);
            }
            11..13 => {
                let (to, inner) = (self.peer(me)?, begin());
                let answer = relay::on(&peer, token, to.name().to_string(), inner).await;
                self.check(me, "relay", token, answer, &expected(inner), false);
            }
            13 => self.read_numbers(me, &peer, token).await,
            _ => self.use_value(me, &peer, token).await?,
        }
        Ok(())
    }

    async fn read_numbers(&mut self, me: &Worker, peer: &Peer, token: u64) {
        let to = self.rng.u64(0..3_000);
        let mut stream = match numbers::on(peer, token, to).await {
            Ok(stream) => stream,
            Err(error) => return self.check_error(me, "numbers", &error, false),
        };
        for expected in 0..to {
            match stream.next().await {
                Some(Ok(number)) if number == expected => {}
                Some(Err(error)) => return self.check_error(me, "next", &error, false),
                other => {
                    let what = format!("stream {token} has {other:?} in place of {expected}");
                    return ledger::violated("RR-2", &what);
                }
            }
            if self.rng.u16(..1_000) == 0 {
                // The rest is not wanted.
                return;
            }
        }
        if let Some(more) = stream.next().await {
            match more {
                Ok(more) => ledger::violated("RR-2", &format!("stream {token} goes on: {more}")),
                Err(error) => self.check_error(me, "end", &error, false),
            }
        }
    }

    /// Makes a value there, uses it here and elsewhere, and lets go of it.
    async fn use_value(&mut self, me: &Worker, peer: &Peer, token: u64) -> Result<(), Over> {
        let counter = Counter::new_on(peer, token).remote();
        let mut count = 0;
        for _ in 0..self.rng.u32(0..3) {
            count += 1;
            let call = begin();
            let answer = counter.add(call).await;
            if !self.check(me, "add", call, answer, &count, false) {
                return Ok(());
            }
        }
        let third = self.peer(me)?;
        match self.rng.u8(..4) {
            // Dropped before anybody can have used it.
            0 => {}
            1 => {
                let (call, inner) = (begin(), begin());
                let pending = add_to::on(&third, call, counter.clone(), inner).start();
                drop(counter);
                self.check(me, "add_to", call, pending.await, &(count + 1), false);
                return Ok(());
            }
            2 => {
                let shelf = begin();
                let pending = keep::on(&third, shelf, shelf, counter.clone()).start();
                drop(counter);
                if self.check(me, "keep", shelf, pending.await, &(), false) {
                    self.use_shelf(me, &third, shelf, count + 1).await;
                }
                return Ok(());
            }
            // Over two other workers, one of which has it in the end.
            _ => {
                let (middle, call, shelf) = (self.peer(me)?, begin(), begin());
                let to = third.name().to_string();
                let pending = pass_on::on(&middle, call, to, shelf, counter).start();
                if self.check(me, "pass_on", call, pending.await, &(), false) {
                    self.use_shelf(me, &third, shelf, count + 1).await;
                }
                return Ok(());
            }
        }
        let call = begin();
        let answer = counter.count(call).await;
        self.check(me, "count", call, answer, &count, false);
        Ok(())
    }

    async fn use_shelf(&mut self, me: &Worker, keeper: &Peer, shelf: u64, count: u64) {
        sleep(Duration::from_millis(self.rng.u64(0..40))).await;
        let (call, inner) = (begin(), begin());
        let answer = use_kept::on(keeper, call, shelf, inner).await;
        // Another life of the keeper has nothing.
        let answer = match answer {
            Ok(None) if self.group.is_lost(keeper.name()) => return,
            answer => answer,
        };
        self.check(me, "use_kept", call, answer, &Some(count), false);
    }

    /// Says whether a call has succeeded.
    fn check<T: PartialEq + Debug>(
        &self,
        me: &Worker,
        what: &str,
        token: u64,
        answer: farref::Result<T>,
        expected: &T,
        is_limited: bool,
    ) -> bool {
        match answer {
            Ok(value) => {
                ledger::note(|| format!("{} has the answer to {token} ({what})", me.name()));
                if value != *expected {
                    let (value, expected) = (shorten(&value), shorten(expected));
                    let what = format!("{what} {token} has brought {value}, not {expected}");
                    ledger::violated("RR-2", &what);
                }
                let runs = ledger::runs(token);
                if runs != 1 {
                    let what = format!("{what} {token} is answered and has run {runs} times");
                    ledger::violated("RR-1", &what);
                }
                true
            }
            Err(error) => {
                self.check_error(me, what, &error, is_limited);
                false
            }
        }
    }

    /// RR-2
    fn check_error(&self, me: &Worker, what: &str, error: &Error, is_limited: bool) {
        ledger::failed();
        ledger::note(|| format!("{}: {what} fails: {error}", me.name()));
        let group = &self.group;
        let fits = match error {
            _ if group.is_lost(me.name()) => true,
            Error::Timeout { .. } => is_limited,
            Error::PeerLost { peer: name, .. }
            | Error::OwnerLost { owner: name }
            | Error::CreatorLost { creator: name } => group.is_lost(name),
            Error::NoSuchPeer { name, .. } => group.is_lost(name),
            // What a function in the middle has met, and references to what was never made.
            Error::Remote(_) | Error::Codec { .. } | Error::Reference(_) => {
                group.names_lost(&error.to_string())
            }
            _ => false,
        };
        if !fits {
            let what = format!("{what} from {} fails without a cause: {error:?}", me.name());
            ledger::violated("RR-2", &what);
        }
    }
}

/// The number of a new call.
fn begin() -> u64 {
    ledger::called();
    ledger::fresh()
}

fn shorten(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.chars().take(60).collect()
}
