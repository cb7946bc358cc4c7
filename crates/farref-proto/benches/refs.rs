//! What references cost: whole lives of them, and how the cost depends on how many are alive.
//!
//! - `life`: whole lives through reference tables that are otherwise empty.
//! - `live`: the same beside `N` references that stay alive on one owner. `whole_*` are operations
//!   as a program causes them, with the messages that they take; `owner_*` are the owner's calls
//!   alone; `probe_*` is a single look-up.
//! - `live_node`: a whole operation through [`Node`], with every message encoded and decoded.
//!
//! `N` goes from 10^3 to 10^5, and with `FARREF_BENCH_FULL=1` in the environment to 10^7, which
//! takes up to 2.5 GB of memory. `docs/benchmarks.md` says how to read the results.
//!
//! `cargo bench -p farref-proto --bench refs -- NAME` measures only what has `NAME` in its name;
//! `-- --test` runs each operation once.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, process};

use farref_proto::{
    Arrival, CallHead, Carried, Control, Creation, Fetch, Fingerprint, ForkId, Membership,
    MessageId, Node, NodeConfig, NodeId, Outbox, RRefId, RefTable, RefTableConfig, Registration,
    Share, Target, Waiter, Want,
};

/// How often an operation is measured. The median counts.
const SAMPLES: usize = 30;
const WARM_UP_TIME: Duration = Duration::from_millis(500);
const SAMPLE_TIME: Duration = Duration::from_millis(50);

/// What the command line asks for.
struct Benchmarks {
    filter: String,
    is_test: bool,
    /// Whether an operation had the filter in its name.
    has_run: Cell<bool>,
}

impl Benchmarks {
    fn from_args() -> Self {
        let mut chosen = Self {
            filter: String::new(),
            is_test: false,
            has_run: Cell::new(false),
        };
        for argument in env::args().skip(1) {
            match argument.as_str() {
                "--test" => chosen.is_test = true,
                // Cargo's own.
                "--bench" => {}
                option if option.starts_with('-') => {
                    eprintln!("there is no option `{option}`: NAME and `--test` are all");
                    process::exit(2);
                }
                _ => chosen.filter = argument,
            }
        }
        chosen
    }

    /// Prints what `measure` measures, unless the command line leaves it out.
    fn run(&self, name: &str, measure: impl FnOnce(&mut Timer)) {
        if !name.contains(&self.filter) {
            return;
        }
        self.has_run.set(true);
        let mut timer = Timer {
            is_test: self.is_test,
            nanoseconds: Vec::new(),
        };
        measure(&mut timer);
        let mut samples = timer.nanoseconds;
        samples.sort_by(f64::total_cmp);
        match samples.get(samples.len() / 2) {
            Some(median) => {
                let (least, most) = (samples[0], samples[samples.len() - 1]);
                println!("{name:45} {median:10.1} ns ({least:.1} to {most:.1})");
            }
            None => println!("{name:45} ok"),
        }
    }
}

/// Measures one operation.
struct Timer {
    is_test: bool,
    /// For one operation, in each sample.
    nanoseconds: Vec<f64>,
}

impl Timer {
    fn iter<T>(&mut self, mut operation: impl FnMut() -> T) {
        if self.is_test {
            black_box(operation());
            return;
        }
        let began = Instant::now();
        let mut warmed = 0_u32;
        while began.elapsed() < WARM_UP_TIME {
            black_box(operation());
            warmed += 1;
        }
        let of_one = began.elapsed() / warmed;
        let operations = SAMPLE_TIME.as_nanos() / of_one.as_nanos().max(1) + 1;
        for _ in 0..SAMPLES {
            let began = Instant::now();
            for _ in 0..operations {
                black_box(operation());
            }
            let sample = began.elapsed().as_nanos() as f64;
            self.nanoseconds.push(sample / operations as f64);
        }
    }
}

type Value = Arc<u64>;

const FINGERPRINT: Fingerprint = Fingerprint(7);
const OWNER: NodeId = NodeId::new(0, 1);
const CREATOR: NodeId = NodeId::new(1, 1);
const THIRD: NodeId = NodeId::new(2, 1);
/// The references that stay alive were made by this many nodes, from this worker on.
const CROWD: u64 = 64;
const FIRST_OF_CROWD: u32 = 100;

/// One node's reference table and what it wants to say.
struct Worker {
    table: RefTable<Value>,
    out: Outbox<Value>,
}

impl Worker {
    fn new(me: NodeId) -> Self {
        Self {
            table: RefTable::new(me, RefTableConfig::default()),
            out: Outbox::new(),
        }
    }

    fn owner_of(live: u64) -> Self {
        let mut owner = Self::new(OWNER);
        for index in 0..live {
            owner.take_creation(live_creation(index));
            owner.discard_output();
        }
        assert_eq!(owner.table.len() as u64, live);
        owner
    }

    /// What the owner does when a call arrives whose result is to stay.
    fn take_creation(&mut self, creation: Creation) {
        let Share { rref, fork } = creation.share;
        self.table
            .accept_creation(fork.origin, creation, &mut self.out)
            .expect("a new reference");
        self.table
            .fulfil(rref, Arc::new(rref.counter), &mut self.out);
    }

    fn handle(&mut self, from: NodeId, control: Control) {
        let Self { table, out } = self;
        match control {
            Control::Register(registrations) => {
                for registration in registrations {
                    table
                        .on_register(from, registration, out)
                        .expect("a fork of the sender's");
                }
            }
            Control::Confirm(shares) => {
                shares
                    .into_iter()
                    .for_each(|share| table.on_confirm(from, share, out));
            }
            Control::Accept(shares) => {
                for share in shares {
                    table
                        .on_accept(from, share, out)
                        .expect("a child of this node's");
                }
            }
            Control::Release(shares) => {
                for share in shares {
                    table
                        .on_release(from, share, out)
                        .expect("a fork of the sender's");
                }
            }
            other => unreachable!("{other:?} is not about living references"),
        }
    }

    fn discard_output(&mut self) {
        while self.out.pop_control().is_some() {}
        while self.out.pop_event().is_some() {}
    }
}

/// Delivers what the workers want to say until all are silent. Messages to others get lost.
fn exchange(workers: &mut [&mut Worker]) {
    loop {
        let mut silent = true;
        for sender in 0..workers.len() {
            let from = workers[sender].table.me();
            while let Some((to, control)) = workers[sender].out.pop_control() {
                silent = false;
                if let Some(receiver) = workers.iter_mut().find(|other| other.table.me() == to) {
                    receiver.handle(from, control);
                }
            }
            while let Some(event) = workers[sender].out.pop_event() {
                drop(black_box(event));
            }
        }
        if silent {
            return;
        }
    }
}

/// The creation that made one of the references that stay alive.
fn live_creation(index: u64) -> Creation {
    let creator = NodeId::new(FIRST_OF_CROWD + (index % CROWD) as u32, 1);
    // As a node counts: one id for the reference, the next for its fork.
    let counter = index / CROWD * 2;
    Creation {
        share: Share {
            rref: RRefId::new(creator, counter),
            fork: ForkId::new(creator, counter + 1),
        },
        fingerprint: FINGERPRINT,
    }
}

/// An index below `live`, another one each time (SplitMix64).
fn random_index(state: &mut u64, live: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % live
}

/// A fork of one of the references that stay alive, as its creator would make it for another node.
/// Counters this high collide with none of its own.
fn further_fork(index: u64, serial: u64) -> Carried {
    let Creation { share, fingerprint } = live_creation(index);
    let creator = share.fork.origin;
    Carried {
        share: Share {
            rref: share.rref,
            fork: ForkId::new(creator, (1 << 40) + serial),
        },
        owner: OWNER,
        fingerprint,
    }
}

/// A reference is created remotely, confirmed, dropped, released and freed.
fn create_and_drop(creator: &mut Worker, owner: &mut Worker) {
    let creation = creator
        .table
        .create_remote(OWNER, FINGERPRINT)
        .expect("the owner lives");
    owner.take_creation(creation);
    exchange(&mut [owner, creator]);
    creator
        .table
        .drop_handle(creation.share.rref, &mut creator.out);
    exchange(&mut [creator, owner]);
}

/// `holder` hands a reference to `third`, which registers, accepts, and drops it in the end.
fn hand_on_and_drop(holder: &mut Worker, third: &mut Worker, owner: &mut Worker, rref: RRefId) {
    let carried = holder.table.fork(rref, THIRD).expect("a held reference");
    third
        .table
        .receive(CREATOR, &carried, &mut third.out)
        .expect("a fork of the sender's");
    exchange(&mut [third, owner, holder]);
    third.table.drop_handle(rref, &mut third.out);
    exchange(&mut [third, owner]);
}

/// `owner` hands a reference to `user`, which drops it.
fn share_and_drop(owner: &mut Worker, user: &mut Worker, rref: RRefId) {
    let carried = owner.table.fork(rref, CREATOR).expect("an owned reference");
    user.table
        .receive(OWNER, &carried, &mut user.out)
        .expect("a fork of the sender's");
    user.table.drop_handle(rref, &mut user.out);
    exchange(&mut [user, owner]);
}

fn life(benchmarks: &Benchmarks) {
    let (mut owner, mut creator) = (Worker::new(OWNER), Worker::new(CREATOR));
    let mut third = Worker::new(THIRD);

    benchmarks.run("life/local_create_and_drop", |timer| {
        timer.iter(|| {
            let rref = owner
                .table
                .create_local(Arc::new(7), FINGERPRINT)
                .expect("a living table");
            owner.table.drop_handle(rref, &mut owner.out);
            drop(black_box(owner.out.pop_event()));
        });
    });
    benchmarks.run("life/remote_create_confirm_drop", |timer| {
        timer.iter(|| create_and_drop(&mut creator, &mut owner));
    });

    let shared = owner
        .table
        .create_local(Arc::new(7), FINGERPRINT)
        .expect("a living table");
    benchmarks.run("life/owner_to_user_share_drop", |timer| {
        timer.iter(|| share_and_drop(&mut owner, &mut creator, shared));
    });

    let held = creator
        .table
        .create_remote(OWNER, FINGERPRINT)
        .expect("the owner lives");
    owner.take_creation(held);
    exchange(&mut [&mut owner, &mut creator]);
    benchmarks.run("life/user_to_user_hand_on_drop", |timer| {
        let rref = held.share.rref;
        timer.iter(|| hand_on_and_drop(&mut creator, &mut third, &mut owner, rref));
    });
    assert_eq!(
        owner.table.len() + creator.table.len() + third.table.len(),
        3
    );
}

/// How many references stay alive, from small to large.
fn sizes() -> impl Iterator<Item = u64> {
    let full = env::var_os("FARREF_BENCH_FULL").is_some_and(|value| value == "1");
    let largest = if full { 7 } else { 5 };
    (3..=largest).map(|power| 10_u64.pow(power))
}

fn live(benchmarks: &Benchmarks) {
    for live in sizes() {
        // Made when the first benchmark of this size runs: a filter may leave all of them out.
        let mut owner = None;
        live_operations(benchmarks, live, &mut owner);
        if let Some(owner) = owner {
            assert_eq!(owner.table.len() as u64, live);
        }
    }
}

fn live_operations(benchmarks: &Benchmarks, live: u64, owner: &mut Option<Worker>) {
    let mut creator = Worker::new(CREATOR);
    let mut third = Worker::new(THIRD);
    let (mut random, mut serial) = (live, 0);
    let mut next_fork = move || {
        serial += 1;
        further_fork(random_index(&mut random, live), serial)
    };

    benchmarks.run(&format!("live/whole_create_confirm_drop/{live}"), |timer| {
        let owner = owner.get_or_insert_with(|| Worker::owner_of(live));
        timer.iter(|| create_and_drop(&mut creator, owner));
    });
    // The creators' side is left out (it would need tables as large as the owner's): the forks
    // are made by hand, and the acceptances go nowhere.
    benchmarks.run(&format!("live/whole_hand_on_drop/{live}"), |timer| {
        let owner = owner.get_or_insert_with(|| Worker::owner_of(live));
        timer.iter(|| {
            let carried = next_fork();
            let Share { rref, fork } = carried.share;
            third
                .table
                .receive(fork.origin, &carried, &mut third.out)
                .expect("a proper fork");
            exchange(&mut [&mut third, owner]);
            third.table.drop_handle(rref, &mut third.out);
            exchange(&mut [&mut third, owner]);
        });
    });
    benchmarks.run(&format!("live/owner_create_release/{live}"), |timer| {
        let owner = owner.get_or_insert_with(|| Worker::owner_of(live));
        timer.iter(|| {
            let creation = creator
                .table
                .create_remote(OWNER, FINGERPRINT)
                .expect("owner lives");
            creator.table.abort_creation(creation.share.rref);
            owner.take_creation(creation);
            owner
                .table
                .on_release(CREATOR, creation.share, &mut owner.out)
                .expect("the holder");
            owner.discard_output();
        });
    });
    benchmarks.run(&format!("live/owner_register_release/{live}"), |timer| {
        let owner = owner.get_or_insert_with(|| Worker::owner_of(live));
        timer.iter(|| {
            let Carried {
                share, fingerprint, ..
            } = next_fork();
            let registration = Registration { share, fingerprint };
            owner
                .table
                .on_register(THIRD, registration, &mut owner.out)
                .expect("a new fork");
            owner
                .table
                .on_release(THIRD, share, &mut owner.out)
                .expect("the holder");
            owner.discard_output();
        });
    });
    benchmarks.run(&format!("live/probe_fetch/{live}"), |timer| {
        let owner = owner.get_or_insert_with(|| Worker::owner_of(live));
        timer.iter(|| {
            let rref = next_fork().share.rref;
            let waiter = Waiter {
                node: THIRD,
                request: MessageId(rref.counter),
            };
            let Ok(Fetch::Ready(value)) = owner.table.fetch(rref, FINGERPRINT, waiter) else {
                unreachable!("a live reference has its value");
            };
            *value
        });
    });
}

/// A node and what it wants to say.
struct Station {
    node: Node<Value>,
    out: Outbox<Value>,
}

impl Station {
    fn new(me: NodeId) -> Self {
        let crowd = (0..CROWD).map(|index| live_creation(index).share.rref.origin);
        let members = crowd.chain([OWNER, CREATOR]);
        Self {
            node: Node::new(me, Membership::founding(me, members), NodeConfig::default()),
            out: Outbox::new(),
        }
    }

    fn owner_of(live: u64) -> Self {
        let mut owner = Self::new(OWNER);
        for index in 0..live {
            let creation = live_creation(index);
            let head = CallHead {
                target: Target::Stay(creation),
                context: None,
                carried: Vec::new(),
            };
            owner.take_creation(creation.share.rref.origin, &head);
            while owner.out.pop_control().is_some() {}
        }
        owner
    }

    fn take_creation(&mut self, from: NodeId, head: &CallHead) {
        self.node
            .receive_call(from, head, &mut self.out)
            .expect("a call of a member's");
        let Target::Stay(creation) = head.target else {
            unreachable!("the result was to stay");
        };
        let rref = creation.share.rref;
        let value = Arc::new(rref.counter);
        self.node
            .finish_creation(from, rref, None, value, &mut self.out);
    }

    /// Sends what this node has to say to its only partner, as bytes.
    fn talk_to(&mut self, receiver: &mut Self) {
        while let Some((_, control)) = self.out.pop_control() {
            let control = through_bytes(&control);
            let from = self.node.me();
            receiver
                .node
                .handle(from, control, &mut receiver.out)
                .expect("a proper message");
        }
        while let Some(event) = self.out.pop_event() {
            drop(black_box(event));
        }
    }
}

/// Encodes and decodes, as sending does.
fn through_bytes<T: serde::Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
    let bytes = postcard::to_allocvec(message).expect("messages can be encoded");
    postcard::from_bytes(black_box(&bytes)).expect("what was encoded can be decoded")
}

/// A program creates a value on the owner, fetches it and drops the reference: all but the I/O.
fn create_fetch_drop(user: &mut Station, owner: &mut Station) -> u64 {
    let want = Want::Reference(FINGERPRINT);
    let head = user
        .node
        .call(OWNER, want, &[], None, &mut user.out)
        .expect("the owner lives");
    let Target::Stay(creation) = head.target else {
        unreachable!("the result is to stay");
    };
    let rref = creation.share.rref;
    owner.take_creation(CREATOR, &through_bytes(&head));
    owner.talk_to(user);
    user.talk_to(owner);

    let want = Want::Value(rref, FINGERPRINT);
    let head = user
        .node
        .call(OWNER, want, &[], None, &mut user.out)
        .expect("a held reference");
    let head: CallHead = through_bytes(&head);
    let arrival = owner
        .node
        .receive_call(CREATOR, &head, &mut owner.out)
        .expect("a proper call");
    let (Target::Fetch(request, ..), Arrival::Value(value)) = (head.target, arrival) else {
        unreachable!("the value is there");
    };
    let answer = owner
        .node
        .answer(CREATOR, request, &[], &mut owner.out)
        .expect("no references");
    let answer = through_bytes(&answer.expect("the asker lives"));
    user.node
        .receive_answer(OWNER, &answer, &mut user.out)
        .expect("an expected answer");

    user.node.drop_handle(rref, &mut user.out);
    user.talk_to(owner);
    owner.talk_to(user);
    *value
}

fn live_node(benchmarks: &Benchmarks) {
    for live in sizes() {
        let mut owner = None;
        let mut user = Station::new(CREATOR);
        benchmarks.run(
            &format!("live_node/whole_create_fetch_drop/{live}"),
            |timer| {
                let owner = owner.get_or_insert_with(|| Station::owner_of(live));
                timer.iter(|| create_fetch_drop(&mut user, owner));
            },
        );
        assert!(user.node.is_empty());
    }
}

fn main() {
    let benchmarks = Benchmarks::from_args();
    life(&benchmarks);
    live(&benchmarks);
    live_node(&benchmarks);
    if !benchmarks.has_run.get() {
        eprintln!("no operation has `{}` in its name", benchmarks.filter);
        process::exit(2);
    }
}
