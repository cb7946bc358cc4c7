//! What a worker of the workload does of its own accord: carries out one operation after the other, and notes what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use farref::{Blob, Peer, Worker};
use farref_autograd::{Context, Parameter, Tensor};
use farref_pickle::py_call;
use tokio::sync::watch;

use super::data::{bytes, digest, mixed};
use super::functions::{
    echo, hand_on, keep, keep_some, lend, linger, numbers, refuse, relay, scale_twice, sum,
    sum_on_thread, visit,
};
use super::history::{self, Event, Expected, Outcome};
use super::operations::{Choice, Choices, Operation};
use super::pool::{self, Far};
use super::probe::Probe;
use super::settings::{PYTHON, RUST, Settings};
use super::trouble::{Kind, Raised, Trouble};

/// The limit of calls that cannot be done in time.
const TOO_SHORT: Duration = Duration::from_millis(30);
/// How long those would take.
const TOO_LONG_MS: u64 = 600_000;

/// Carries out operations until it is told to stop; the last one to its end.
pub(super) async fn run(
    me: Worker,
    settings: Settings,
    lane: u32,
    mut stop: watch::Receiver<bool>,
) {
    let mut choices = Choices::new(settings.seed, settings.life, lane, settings.pause());
    let lane = Lane {
        me,
        limit: settings.limit(),
    };
    loop {
        let choice = choices.next();
        tokio::select! {
            () = tokio::time::sleep(choice.pause) => {}
            () = stopped(&mut stop) => return,
        }
        lane.carry_out(&choice).await;
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

struct Lane {
    me: Worker,
    limit: Duration,
}

/// A call that is to be made.
struct Planned {
    call: u64,
    function: &'static str,
    to: String,
    through: Vec<String>,
    values: Vec<u64>,
    expects: Expected,
    limit: Duration,
    limits: u32,
}

impl Planned {
    fn begin(self) -> u64 {
        history::note(Event::Begun {
            call: self.call,
            function: self.function.to_owned(),
            to: self.to,
            through: self.through,
            values: self.values,
            expects: self.expects,
            limit_ms: self.limit.as_millis() as u64,
            limits: self.limits,
        });
        self.call
    }

    fn through(mut self, worker: &Peer) -> Self {
        self.through.push(worker.name().to_owned());
        self
    }

    /// It is on this value, or carries a reference to it.
    fn on(mut self, value: u64) -> Self {
        self.values.push(value);
        self
    }

    fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn limits(mut self, limits: u32) -> Self {
        self.limits = limits;
        self
    }
}

impl Lane {
    fn planned(&self, call: u64, function: &'static str, to: &Peer, expects: Expected) -> Planned {
        Planned {
            call,
            function,
            to: to.name().to_owned(),
            through: Vec::new(),
            values: Vec::new(),
            expects,
            limit: self.limit,
            limits: 1,
        }
    }

    /// One of the workers whose names begin so.
    fn peer(&self, kind: &str, index: usize) -> Option<Peer> {
        let mut peers = self.me.peers();
        peers.retain(|peer| peer.name().starts_with(kind));
        let index = index.checked_rem(peers.len())?;
        Some(peers.swap_remove(index))
    }

    async fn carry_out(&self, choice: &Choice) {
        let to = self.peer(RUST, choice.to);
        let third = self.peer(RUST, choice.third);
        let (Some(to), Some(third)) = (to, third) else {
            return;
        };
        match choice.operation {
            Operation::Sum { on_thread } => self.sum(&to, choice, on_thread).await,
            Operation::Relay => self.relay(&to, third, choice).await,
            Operation::Echo { bytes } => self.echo(&to, choice, bytes).await,
            Operation::Make => make(&to),
            Operation::Use { alone } => self.use_value(choice, alone).await,
            Operation::Give => self.give(&to, choice).await,
            Operation::GiveNested => self.give_nested(&to, choice).await,
            Operation::HandOn => self.hand_on(&to, third, choice).await,
            Operation::Borrow => self.borrow(&to, choice).await,
            Operation::SendBack => self.send_back(choice).await,
            Operation::Abandon { after } => self.abandon(&to, choice, after).await,
            Operation::Forget => self.forget(&to, choice),
            Operation::Fetch { numbers } => self.fetch(&to, choice, numbers).await,
            Operation::Train => self.train(&to, &third, choice).await,
            Operation::Late => self.late(&to).await,
            Operation::Refuse => self.refuse(&to, choice).await,
            Operation::Python => self.python(choice).await,
            Operation::LetGo => pool::let_go(choice.reference),
        }
    }

    /// Notes a call, makes it, and notes what came of it.
    async fn call<T>(
        &self,
        planned: Planned,
        made: impl Future<Output = farref::Result<Result<T, Raised>>>,
        stands_for: impl FnOnce(&T) -> u64,
    ) -> Option<T> {
        let call = planned.begin();
        let came = made.await;
        let outcome = match &came {
            Ok(Ok(value)) => Outcome::Value(stands_for(value)),
            Ok(Err(Raised::Refused(number))) => Outcome::Refusal(*number),
            Ok(Err(Raised::Trouble(trouble))) => Outcome::Failed(trouble.clone()),
            Err(error) => Outcome::Failed(Trouble::of(error)),
        };
        history::note(Event::Ended { call, outcome });
        came.ok()?.ok()
    }

    async fn sum(&self, to: &Peer, choice: &Choice, on_thread: bool) {
        let call = history::next_number();
        let (a, b) = (choice.number, choice.to as u64);
        let made = match on_thread {
            true => sum_on_thread::on(to, call, a, b)
                .timeout(self.limit)
                .result(),
            false => sum::on(to, call, a, b).timeout(self.limit).result(),
        };
        let planned = self.planned(call, "sum", to, Expected::Value(a + b));
        self.call(planned, made, |sum| *sum).await;
    }

    async fn relay(&self, to: &Peer, third: Peer, choice: &Choice) {
        let call = history::next_number();
        let (a, b) = (choice.number, choice.third as u64);
        let planned = self.planned(call, "relay", to, Expected::Value(a + b));
        let planned = planned.through(&third);
        let made = relay::on(to, call, third, a, b)
            .timeout(self.limit)
            .result();
        self.call(planned, made, |sum| *sum).await;
    }

    async fn echo(&self, to: &Peer, choice: &Choice, count: usize) {
        let call = history::next_number();
        let bytes = bytes(choice.number, count);
        let planned = self.planned(call, "echo", to, Expected::Value(digest(&bytes)));
        let made = echo::on(to, call, Blob::from(bytes))
            .timeout(self.limit)
            .result();
        self.call(planned, made, |blob| digest(blob)).await;
    }

    async fn use_value(&self, choice: &Choice, alone: bool) {
        let Some(far) = pool::look(choice.reference) else {
            return;
        };
        let Some(owner) = self.owner(&far) else {
            return;
        };
        let call = history::next_number();
        let planned = self.planned(call, "use", &owner, Expected::Value(mixed(far.value, call)));
        let made = match alone {
            true => Probe::change_on(&far.probe, call),
            false => Probe::mark_on(&far.probe, call),
        };
        let made = made.timeout(self.limit);
        let made = async { made.await.map(Ok) };
        self.call(planned.on(far.value), made, |mark| *mark).await;
    }

    /// The worker that has the value. A reference that leads nowhere is no reference that anybody may have got.
    fn owner(&self, far: &Far) -> Option<Peer> {
        match far.probe.owner() {
            Ok(owner) => Some(owner),
            Err(error) => {
                let call = history::next_number();
                let me = self.me.me();
                let planned = self.planned(call, "owner", &me, Expected::Anything);
                planned.on(far.value).begin();
                let outcome = Outcome::Failed(Trouble::of(&error));
                history::note(Event::Ended { call, outcome });
                None
            }
        }
    }

    async fn give(&self, to: &Peer, choice: &Choice) {
        let Some(far) = pool::look(choice.reference) else {
            return;
        };
        let call = history::next_number();
        let planned = self.planned(call, "give", to, Expected::Value(mixed(far.value, call)));
        let planned = planned.on(far.value);
        let made = keep::on(to, call, far).timeout(self.limit).result();
        self.call(planned, made, |answer| *answer).await;
    }

    async fn give_nested(&self, to: &Peer, choice: &Choice) {
        let look = |offset| pool::look(choice.reference + offset);
        let (Some(one), Some(two), Some(three)) = (look(0), look(1), look(2)) else {
            return;
        };
        let call = history::next_number();
        let planned = self.planned(call, "give_nested", to, Expected::Value(two.value));
        let planned = planned.on(one.value).on(two.value).on(three.value);
        let list = vec![None, Some((1, one)), None, Some((2, two))];
        let map = BTreeMap::from([("three".to_owned(), three)]);
        let made = keep_some::on(to, call, list, map)
            .timeout(self.limit)
            .result();
        let values = |back: &Vec<Far>| back.iter().map(|far| far.value).sum();
        let back = self.call(planned, made, values).await;
        // Kept, or dropped here.
        for far in back.into_iter().flatten() {
            if choice.number.is_multiple_of(2) {
                pool::keep(far);
            }
        }
    }

    async fn hand_on(&self, to: &Peer, third: Peer, choice: &Choice) {
        let Some(far) = pool::look(choice.reference) else {
            return;
        };
        let call = history::next_number();
        let expects = Expected::Value(mixed(far.value, call));
        let planned = self.planned(call, "hand_on", to, expects).through(&third);
        let planned = planned.on(far.value);
        let made = hand_on::on(to, call, third, far)
            .timeout(self.limit)
            .result();
        // Half of the time the one who hands it on is the only one who has it meanwhile.
        if choice.number.is_multiple_of(2) {
            pool::let_go(choice.reference);
        }
        self.call(planned, made, |answer| *answer).await;
    }

    async fn borrow(&self, to: &Peer, choice: &Choice) {
        let call = history::next_number();
        let planned = self.planned(call, "borrow", to, Expected::Anything);
        let made = lend::on(to, call, choice.reference)
            .timeout(self.limit)
            .result();
        if let Some(far) = self.call(planned, made, |far| far.value).await {
            pool::keep(far);
        }
    }

    async fn send_back(&self, choice: &Choice) {
        let Some(far) = pool::look(choice.reference) else {
            return;
        };
        let Some(owner) = self.owner(&far) else {
            return;
        };
        let call = history::next_number();
        let value = far.value;
        let expects = Expected::Value(mixed(value, call));
        let planned = self.planned(call, "send_back", &owner, expects).on(value);
        let made = visit::on(&owner, call, far).timeout(self.limit).result();
        self.call(planned, made, |answer| *answer).await;
    }

    async fn abandon(&self, to: &Peer, choice: &Choice, after: Duration) {
        let call = history::next_number();
        let fars = some(choice);
        self.planned(call, "abandon", to, Expected::Nothing).begin();
        let pending = linger::on(to, call, 20, fars).timeout(self.limit).start();
        tokio::time::sleep(after).await;
        drop(pending);
        let outcome = Outcome::Dropped;
        history::note(Event::Ended { call, outcome });
    }

    fn forget(&self, to: &Peer, choice: &Choice) {
        let call = history::next_number();
        self.planned(call, "forget", to, Expected::Nothing).begin();
        drop(linger::on(to, call, 5, some(choice)).remote());
        let outcome = Outcome::Dropped;
        history::note(Event::Ended { call, outcome });
    }

    async fn fetch(&self, to: &Peer, choice: &Choice, count: u32) {
        let call = history::next_number();
        let first = choice.number;
        let expected = (first..).take(count as usize).sum();
        self.call(
            self.planned(call, "fetch", to, Expected::Value(expected)),
            async {
                let list = numbers::on(to, call, first, count).remote();
                list.to_here().timeout(self.limit).await.map(Ok)
            },
            |list: &Vec<u64>| list.iter().sum(),
        )
        .await;
    }

    async fn train(&self, to: &Peer, third: &Peer, choice: &Choice) {
        let call = history::next_number();
        let by = choice.number % 7 + 2;
        let expects = Expected::Value(WEIGHTS.len() as u64 * by * by);
        let planned = self.planned(call, "train", to, expects).through(third);
        // Forward, backward, and the release of the context.
        let planned = planned.limits(3);
        let made = async { Ok(self.step(to, third, call, by).await) };
        self.call(planned, made, |gradient| *gradient).await;
    }

    /// Forward over two workers and back; the sum of the gradient.
    async fn step(&self, to: &Peer, third: &Peer, call: u64, by: u64) -> Result<u64, Raised> {
        let weights = Tensor::from_vec(WEIGHTS.to_vec(), WEIGHTS.len())?;
        let weight = Parameter::new(&weights)?;
        let context = Context::new(&self.me)?;
        let forward = async {
            let weight = weight.tensor();
            let scaled = scale_twice::on(to, call, third.clone(), weight, by as f64);
            let scaled = scaled.timeout(self.limit).result().await??;
            let loss = scaled.sum_all().map_err(farref_autograd::Error::from)?;
            Ok::<_, Raised>(Tensor::from(loss))
        };
        let loss = context.run(forward).await?;
        context.backward(&[&loss]).timeout(self.limit).await?;
        let gradient = context.gradient(&weight).ok_or_else(|| {
            Raised::Trouble(Trouble {
                kind: Kind::Unexpected,
                worker: None,
                text: "the pass is done, and there is no gradient".to_owned(),
            })
        })?;
        let sum = gradient.sum_all().and_then(|sum| sum.to_scalar::<f64>());
        let sum = sum.map_err(farref_autograd::Error::from)?;
        context.release().await?;
        Ok(sum as u64)
    }

    async fn late(&self, to: &Peer) {
        let call = history::next_number();
        let planned = self.planned(call, "late", to, Expected::Timeout);
        let made = linger::on(to, call, TOO_LONG_MS, Vec::new())
            .timeout(TOO_SHORT)
            .result();
        self.call(planned.limit(TOO_SHORT), made, |count| *count)
            .await;
    }

    async fn refuse(&self, to: &Peer, choice: &Choice) {
        let call = history::next_number();
        let planned = self.planned(call, "refuse", to, Expected::Refusal(choice.number));
        let made = refuse::on(to, call, choice.number)
            .timeout(self.limit)
            .result();
        self.call(planned, made, |number| *number).await;
    }

    async fn python(&self, choice: &Choice) {
        let Some(to) = self.peer(PYTHON, choice.to) else {
            return;
        };
        let call = history::next_number();
        let (a, b) = (choice.number, choice.third as u64);
        let planned = self.planned(call, "python", &to, Expected::Value(a + b));
        let made = py_call::<u64>(&to, "farref_chaos.total", (call, a, b)).timeout(self.limit);
        let made = async { made.await.map(Ok) };
        self.call(planned, made, |sum| *sum).await;
    }
}

/// What is trained.
const WEIGHTS: [f64; 3] = [1.0, 2.0, 3.0];

fn make(to: &Peer) {
    let value = history::next_number();
    let probe = Probe::new_on(to, value).remote();
    pool::keep(Far { value, probe });
}

/// A few references.
fn some(choice: &Choice) -> Vec<Far> {
    let look = |offset| pool::look(choice.reference + offset);
    (0..choice.to % 3).filter_map(look).collect()
}
