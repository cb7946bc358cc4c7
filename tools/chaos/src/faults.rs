//! Doing to a worker what the plan says, and undoing it.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;

use super::group::Group;
use super::history::{self, Event, Life};
use super::plan::{Fault, What};
use super::proxy::{Direction, Rule};
use super::worker::Order;

/// The faults of a run, as far as they have come.
#[derive(Debug, Default)]
pub(super) struct Faults {
    count: u32,
    /// Those that have not been undone.
    standing: BTreeMap<u32, Standing>,
    /// How many were left out, because their worker was not there.
    pub(super) skipped: u32,
}

/// A fault that has not been undone.
#[derive(Debug)]
struct Standing {
    worker: usize,
    life: Life,
    what: What,
    lasts: Duration,
}

/// What is to be done about a fault later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Afterwards {
    /// It is undone after a while.
    Undo { number: u32, after: Duration },
    /// Its worker is started again when its process has ended.
    Nothing,
}

impl Faults {
    /// How many have come.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Lets a fault come. None if its worker is not there.
    pub(super) async fn inject(
        &mut self,
        fault: &Fault,
        group: &mut Group,
        peer_timeout: Duration,
    ) -> Option<Afterwards> {
        let index = fault.worker as usize;
        let member = &mut group.members[index];
        let process = member.process.as_mut();
        let Some(process) = process.filter(|process| process.joined && !process.leaves) else {
            self.skipped += 1;
            return None;
        };
        let life = process.life;
        self.count += 1;
        let number = self.count;
        // Before it is done (HI-2).
        history::note(Event::Fault {
            number,
            kind: fault.what.name().to_owned(),
            worker: member.name.clone(),
            life,
            loses: fault.loses(peer_timeout),
            text: fault.to_string(),
        });
        match fault.what {
            What::Kill => {
                process.killed = true;
                group.signal(index, Signal::KILL);
            }
            What::Leave => {
                process.leaves = true;
                group.tell(index, Order::Leave).await;
            }
            What::Stop => group.signal(index, Signal::STOP),
            of_links => {
                if let Some(door) = &process.door {
                    door.set(rule(of_links));
                }
            }
        }
        let (what, lasts) = (fault.what, fault.lasts);
        let standing = Standing {
            worker: index,
            life,
            what,
            lasts,
        };
        self.standing.insert(number, standing);
        Some(match what {
            What::Kill | What::Leave => Afterwards::Nothing,
            _ => Afterwards::Undo {
                number,
                after: lasts,
            },
        })
    }

    /// Undoes a fault, unless that has been done. Of a life that is over by now nothing is left to be undone.
    pub(super) fn undo(&mut self, number: u32, group: &Group) {
        let Some(fault) = self.standing.remove(&number) else {
            return;
        };
        let process = group.members[fault.worker].process.as_ref();
        if let Some(process) = process.filter(|process| process.life == fault.life) {
            match fault.what {
                What::Kill | What::Leave => {}
                What::Stop => group.signal(fault.worker, Signal::CONT),
                _ => {
                    if let Some(door) = &process.door {
                        door.set(Rule::Pass);
                    }
                }
            }
        }
        history::note(Event::FaultOver { number });
    }

    /// Undoes all that can be undone at once.
    pub(super) fn undo_all(&mut self, group: &Group) {
        let is_of_process = |what| matches!(what, What::Kill | What::Leave);
        let standing = self.standing.iter();
        let undone = standing.filter(|(_, fault)| !is_of_process(fault.what));
        let undone: Vec<u32> = undone.map(|(number, _)| *number).collect();
        for number in undone {
            self.undo(number, group);
        }
    }

    /// The fault that a life has ended by, which is to be over when the next begins: its number, and how long that is to take.
    pub(super) fn ended_by(&self, life: Life) -> Option<(u32, Duration)> {
        let mut standing = self.standing.iter();
        let found = standing.find(|(_, fault)| {
            fault.life == life && matches!(fault.what, What::Kill | What::Leave)
        });
        found.map(|(number, fault)| (*number, fault.lasts))
    }
}

fn rule(what: What) -> Rule {
    match what {
        What::Cut { after } => Rule::CutAfter(after),
        What::Delay { by } => Rule::Delay(by),
        What::Throttle { bytes_per_second } => Rule::Throttle(bytes_per_second),
        What::HalfOpen { inward: true } => Rule::HalfOpen(Direction::Inward),
        What::HalfOpen { inward: false } => Rule::HalfOpen(Direction::Outward),
        What::Kill | What::Leave | What::Stop => Rule::Pass,
    }
}
