//! What a worker does of its own accord: one operation after the other, chosen by the seed alone.
//!
//! On whom, and with which of the references that it has, is chosen here as a number, which is taken modulo how many there are
//! when it comes to it: that depends on what the faults have left.

use std::time::Duration;

use fastrand::Rng;

use super::history::Life;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Adds two numbers there, in a task or on a thread.
    Sum { on_thread: bool },
    /// The same on a third worker, by way of another one.
    Relay,
    /// Sends so many bytes there and back.
    Echo { bytes: usize },
    /// Makes a value there and keeps a reference to it.
    Make,
    /// Calls a method of a value, with the value to itself or not.
    Use { alone: bool },
    /// Gives a reference away, as an argument.
    Give,
    /// References in a list, in a tuple and in a map; some come back in the answer.
    GiveNested,
    /// Gives a reference to one that gives it to a third.
    HandOn,
    /// Asks for a reference, as a result.
    Borrow,
    /// Sends a reference to the worker that has its value.
    SendBack,
    /// Makes a call with references in it and drops it after so long.
    Abandon { after: Duration },
    /// Has a call with references in it left there, and drops what it would be known by.
    Forget,
    /// Leaves a list there and copies it over.
    Fetch { numbers: u32 },
    /// A step of training over two other workers: forward, backward, the gradient.
    Train,
    /// A call that takes longer than it may.
    Late,
    /// A call of a function that fails.
    Refuse,
    /// Calls a function of a Python worker, if there is one.
    Python,
    /// Drops a reference.
    LetGo,
}

/// How often each is chosen, among all.
const WEIGHTS: [(Draw, u32); 18] = [
    (
        |random| Operation::Sum {
            on_thread: random.bool(),
        },
        12,
    ),
    (|_| Operation::Relay, 8),
    (
        |random| Operation::Echo {
            bytes: size(random),
        },
        7,
    ),
    (|_| Operation::Make, 12),
    (
        |random| Operation::Use {
            alone: random.bool(),
        },
        12,
    ),
    (|_| Operation::Give, 6),
    (|_| Operation::GiveNested, 5),
    (|_| Operation::HandOn, 6),
    (|_| Operation::Borrow, 6),
    (|_| Operation::SendBack, 5),
    (
        |random| Operation::Abandon {
            after: Duration::from_micros(random.u64(..20_000)),
        },
        5,
    ),
    (|_| Operation::Forget, 3),
    (
        |random| Operation::Fetch {
            numbers: random.u32(1..20_000),
        },
        4,
    ),
    (|_| Operation::Train, 4),
    (|_| Operation::Late, 2),
    (|_| Operation::Refuse, 2),
    (|_| Operation::Python, 4),
    (|_| Operation::LetGo, 10),
];

type Draw = fn(&mut Rng) -> Operation;

/// Mostly what fits into a frame, sometimes what takes a connection of its own.
fn size(random: &mut Rng) -> usize {
    match random.u32(..10) {
        0..5 => random.usize(1..4_096),
        5..8 => random.usize(4_096..100_000),
        _ => random.usize(100_000..1_500_000),
    }
}

/// One operation, and with whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    pub(super) operation: Operation,
    /// With which worker, and with which third one.
    pub(super) to: usize,
    pub(super) third: usize,
    /// With which reference.
    pub(super) reference: usize,
    /// Any number below 2^32, for what is sent.
    pub(super) number: u64,
    /// How long to wait before it.
    pub(super) pause: Duration,
}

/// What one lane of a worker does. Lanes run side by side.
#[derive(Debug)]
pub(super) struct Choices {
    random: Rng,
    /// How long it waits before an operation, on average.
    pause: Duration,
}

impl Choices {
    pub(super) fn new(seed: u64, life: Life, lane: u32, pause: Duration) -> Self {
        let mut random = Rng::with_seed(seed ^ (u64::from(life) << 24) ^ (u64::from(lane) << 56));
        // Seeds that are near each other begin alike.
        for _ in 0..8 {
            random.u64(..);
        }
        Self { random, pause }
    }

    pub(super) fn next(&mut self) -> Choice {
        let random = &mut self.random;
        let pause = self.pause.as_micros() as u64;
        Choice {
            pause: Duration::from_micros(random.u64(..=2 * pause)),
            operation: draw(random),
            to: random.usize(..1 << 30),
            third: random.usize(..1 << 30),
            reference: random.usize(..1 << 30),
            number: random.u64(..1 << 32),
        }
    }
}

fn draw(random: &mut Rng) -> Operation {
    let all: u32 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let mut chosen = random.u32(..all);
    for (draw, weight) in WEIGHTS {
        if chosen < weight {
            return draw(random);
        }
        chosen -= weight;
    }
    unreachable!("the number is below the sum of the weights")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn choices(seed: u64, life: Life, lane: u32) -> Vec<Choice> {
        let mut choices = Choices::new(seed, life, lane, Duration::from_millis(20));
        (0..2_000).map(|_| choices.next()).collect()
    }

    #[test]
    fn a_seed_is_a_program_and_no_two_lanes_or_lives_have_the_same() {
        assert_eq!(choices(1, 2, 3), choices(1, 2, 3));
        for other in [choices(2, 2, 3), choices(1, 3, 3), choices(1, 2, 0)] {
            assert_ne!(choices(1, 2, 3), other);
        }
    }

    #[test]
    fn every_operation_is_chosen() {
        let words = |choice: &Choice| {
            let text = format!("{:?}", choice.operation);
            let name = text.split([' ', '{']).next().unwrap_or_default();
            name.to_owned()
        };
        let seen: BTreeSet<String> = choices(5, 1, 0).iter().map(words).collect();
        assert_eq!(seen.len(), WEIGHTS.len(), "{seen:?}");
    }

    #[test]
    fn pauses_are_as_long_as_they_are_to_be_on_average() {
        let all = choices(9, 1, 1);
        let sum: Duration = all.iter().map(|choice| choice.pause).sum();
        let average = sum / all.len() as u32;
        let expected = Duration::from_millis(18)..Duration::from_millis(22);
        assert!(expected.contains(&average), "{average:?}");
    }
}
