//! Who came and who went: what changed from one look at the group to the next.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::view::seen::Seen;

/// How many events are kept.
const MOST: usize = 500;

/// What became of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// It was there when this began to look.
    Present,
    Joined,
    Left,
    Died,
    /// The others have declared it dead, though it runs.
    Evicted,
    /// It does not answer who looks.
    Silent,
    /// It answers again.
    Answers,
}

/// A change of the group.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Event {
    /// Milliseconds since 1970.
    pub(super) at: f64,
    pub(super) change: Change,
    pub(super) worker: String,
    pub(super) rank: u32,
    /// Which life of the rank.
    pub(super) life: u32,
}

#[derive(Clone, PartialEq, Debug)]
struct Member {
    name: String,
    life: u32,
    status: Status,
    silent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Status {
    Here,
    Left,
    Dead,
}

/// The members as they were last seen, and what happened so far.
#[derive(Default)]
pub(super) struct Membership {
    members: BTreeMap<u32, Member>,
    events: VecDeque<Event>,
    has_begun: bool,
}

impl Membership {
    pub(super) fn update(&mut self, seen: &[Seen], at: f64) {
        let now = members(seen);
        for (rank, member) in now {
            let before = self.members.insert(rank, member.clone());
            let same_life = before.filter(|before| before.life == member.life);
            let mut happened = Vec::new();
            match (&same_life, member.status) {
                (None, Status::Here) if !self.has_begun => happened.push(Change::Present),
                (None, Status::Here) => happened.push(Change::Joined),
                // What was over before this began is nobody's news.
                (None, _) if !self.has_begun => {}
                (Some(before), status) if before.status == status => {}
                (_, Status::Here) => {}
                (_, Status::Left) => happened.push(Change::Left),
                (_, Status::Dead) => {
                    let answers = seen
                        .iter()
                        .filter_map(Seen::answer)
                        .any(|one| one.rank == rank && one.incarnation == member.life);
                    happened.push(if answers {
                        Change::Evicted
                    } else {
                        Change::Died
                    });
                }
            }
            if member.status == Status::Here {
                let was_silent = same_life.as_ref().is_some_and(|before| before.silent);
                match (was_silent, member.silent) {
                    (false, true) => happened.push(Change::Silent),
                    (true, false) => happened.push(Change::Answers),
                    _ => {}
                }
            }
            for change in happened {
                self.push(Event {
                    at,
                    change,
                    worker: member.name.clone(),
                    rank,
                    life: member.life,
                });
            }
        }
        self.has_begun = true;
    }

    /// The latest first.
    pub(super) fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().rev()
    }

    fn push(&mut self, event: Event) {
        if self.events.len() == MOST {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// All members that anybody knows of, in their latest lives, by rank. Who is gone to one of them is gone.
fn members(seen: &[Seen]) -> BTreeMap<u32, Member> {
    let mut members: BTreeMap<u32, Member> = BTreeMap::new();
    for peer in seen
        .iter()
        .filter_map(Seen::answer)
        .flat_map(|one| &one.peers)
    {
        let status = match &*peer.status {
            "left" => Status::Left,
            "dead" => Status::Dead,
            _ => Status::Here,
        };
        let told = Member {
            name: peer.name.clone(),
            life: peer.incarnation,
            status,
            silent: false,
        };
        let known = members.entry(peer.rank).or_insert_with(|| told.clone());
        if known.life < told.life {
            *known = told;
        } else if known.life == told.life {
            known.status = known.status.max(status);
        }
    }
    for silent in seen.iter().filter(|one| one.snapshot.is_err()) {
        if let Some(member) = members.get_mut(&silent.rank) {
            member.silent = true;
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    fn told(membership: &Membership) -> Vec<(Change, String)> {
        let events = membership.events();
        events
            .map(|event| (event.change, event.worker.clone()))
            .collect()
    }

    fn set_status(seen: &mut [Seen], rank: usize, status: &str) {
        for one in seen.iter_mut().filter(|one| one.snapshot.is_ok()) {
            samples::edit(one, |snapshot| {
                snapshot.peers[rank].status = status.to_owned()
            });
        }
    }

    #[test]
    fn it_begins_with_the_present_and_tells_of_every_change_once() {
        let mut membership = Membership::default();
        let mut seen = samples::group();
        membership.update(&seen, 1.0);
        membership.update(&seen, 2.0);
        assert_eq!(told(&membership).len(), 3);
        assert!(
            told(&membership)
                .iter()
                .all(|(change, _)| *change == Change::Present)
        );

        // It is killed: first it is silent, then the others know.
        let lost = seen[2].clone();
        seen[2].snapshot = Err("gone".to_owned());
        membership.update(&seen, 3.0);
        assert_eq!(
            told(&membership)[0],
            (Change::Silent, "trainer1".to_owned())
        );
        seen.pop();
        set_status(&mut seen, 2, "dead");
        membership.update(&seen, 4.0);
        membership.update(&seen, 5.0);
        assert_eq!(told(&membership)[0], (Change::Died, "trainer1".to_owned()));
        assert_eq!(told(&membership).len(), 5);

        // Another life of it.
        for one in &mut seen {
            samples::edit(one, |snapshot| {
                snapshot.peers[2].incarnation += 1;
                snapshot.peers[2].status = "alive".to_owned();
            });
        }
        membership.update(&seen, 6.0);
        assert_eq!(
            told(&membership)[0],
            (Change::Joined, "trainer1".to_owned())
        );
        set_status(&mut seen, 2, "left");
        membership.update(&seen, 7.0);
        assert_eq!(told(&membership)[0], (Change::Left, "trainer1".to_owned()));
        drop(lost);
    }

    #[test]
    fn who_is_declared_dead_and_runs_was_evicted() {
        let mut membership = Membership::default();
        let mut seen = samples::group();
        membership.update(&seen, 1.0);
        for one in &mut seen[..2] {
            samples::edit(one, |snapshot| snapshot.peers[2].status = "dead".to_owned());
        }
        membership.update(&seen, 2.0);
        assert_eq!(
            told(&membership)[0],
            (Change::Evicted, "trainer1".to_owned())
        );
    }

    #[test]
    fn the_oldest_events_go_first() {
        let mut membership = Membership::default();
        for life in 0..2 * MOST as u32 {
            let mut seen = samples::group();
            for one in &mut seen {
                samples::edit(one, |snapshot| snapshot.peers[2].incarnation = life);
            }
            membership.update(&seen, f64::from(life));
        }
        assert_eq!(membership.events().count(), MOST);
        assert!(
            membership
                .events()
                .all(|event| event.change == Change::Joined)
        );
    }
}
