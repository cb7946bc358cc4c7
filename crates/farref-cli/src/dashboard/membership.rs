//! Who came and who went: what changed from one look at the group to the next.
//!
//! Looks are compared because an observer cannot watch: watching (`Worker::watch_members`) is for members, who keep
//! connections with those whom they watch. An observer is none (OB-1): workers answer its questions and keep nothing for it,
//! so what comes and goes between two looks is told only by who remembers it. That is enough here, as a
//! worker says of all who ever were members how they are: an end is not missed. Of a life that another has followed by the
//! next look, it is known that it is over, and not how: it is said to have died.
//!
//! # Invariants
//!
//! - **DM-1** Each life is told to come once, and to end once, by whatever worker in whatever order, and to end before
//!   the next one comes; of one whose next life is known nothing more is told.
//! - **DM-2** Who is declared dead was evicted only if it answers a look after that: one that was killed may have
//!   answered shortly before.
//! - **DM-3** Who is named by nobody any more is forgotten after [`FORGOTTEN`] looks; no more than [`MEMBERS`] are kept.

use std::collections::{BTreeMap, HashSet, VecDeque};

use serde::Serialize;

use crate::view::seen::Seen;

/// How many events are kept.
const MOST: usize = 500;
/// After so many looks without a word of it, a worker is forgotten.
const FORGOTTEN: u64 = 3600;
/// How many workers are known at a time.
const MEMBERS: usize = 20_000;

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
    /// Whether it has died or was evicted is to be told after the next look.
    undecided: bool,
    /// The last look at which somebody named it.
    looked: u64,
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
    looks: u64,
}

impl Membership {
    pub(super) fn update(&mut self, seen: &[Seen], at: f64) {
        let has_begun = self.looks > 0;
        self.looks += 1;
        let oldest = self.looks.saturating_sub(FORGOTTEN);
        self.members.retain(|_, member| member.looked >= oldest);
        let answers: HashSet<(u32, u32)> = seen
            .iter()
            .filter_map(Seen::answer)
            .map(|one| (one.rank, one.incarnation))
            .collect();
        for (rank, mut member) in members(seen) {
            member.looked = self.looks;
            let before = self.members.get(&rank);
            // DM-1: somebody is behind.
            if before.is_some_and(|before| before.life > member.life) {
                continue;
            }
            if before.is_none() && self.members.len() >= MEMBERS {
                continue;
            }
            let same_life = before.filter(|before| before.life == member.life).cloned();
            if let Some(before) = &same_life {
                member.status = member.status.max(before.status);
            }
            let answers = answers.contains(&(rank, member.life));
            let is_followed = |before: &&Member| {
                let is_told = before.status != Status::Here && !before.undecided;
                before.life < member.life && !is_told
            };
            let followed = before.filter(is_followed).map(|before| Event {
                at,
                change: Change::Died,
                worker: before.name.clone(),
                rank,
                life: before.life,
            });
            let mut happened = Vec::new();
            match (&same_life, member.status) {
                (None, Status::Here) if !has_begun => happened.push(Change::Present),
                (None, Status::Here) => happened.push(Change::Joined),
                // What was over before this began is nobody's news.
                (None, _) if !has_begun => {}
                (Some(before), Status::Dead) if before.undecided => happened.push(match answers {
                    true => Change::Evicted,
                    false => Change::Died,
                }),
                (Some(before), status) if before.status == status => {}
                (_, Status::Here) => {}
                (_, Status::Left) => happened.push(Change::Left),
                // DM-2
                (_, Status::Dead) if answers => member.undecided = true,
                (_, Status::Dead) => happened.push(Change::Died),
            }
            self.members.insert(rank, member.clone());
            if let Some(followed) = followed {
                self.push(followed);
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
    }

    /// The latest first.
    pub(super) fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().rev()
    }

    /// Those who have died and have not come back.
    pub(super) fn dead(&self) -> impl Iterator<Item = &str> {
        let members = self.members.values();
        let dead = members.filter(|member| member.status == Status::Dead);
        dead.map(|member| &*member.name)
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
            undecided: false,
            looked: 0,
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
        assert_eq!(told(&membership).len(), 3, "it may have answered before");
        let mut killed = seen.clone();
        for at in [3.0, 4.0] {
            membership.update(&seen, at);
            let evicted = (Change::Evicted, "trainer1".to_owned());
            assert_eq!(told(&membership)[0], evicted);
            assert_eq!(told(&membership).len(), 4);
        }

        let mut membership = Membership::default();
        membership.update(&samples::group(), 1.0);
        membership.update(&killed, 2.0);
        killed.pop();
        membership.update(&killed, 3.0);
        assert_eq!(told(&membership)[0], (Change::Died, "trainer1".to_owned()));
    }

    /// DM-1
    #[test]
    fn who_is_behind_brings_nobody_back() {
        let mut membership = Membership::default();
        let behind = samples::group();
        membership.update(&behind, 1.0);
        let mut seen = samples::group();
        seen.pop();
        set_status(&mut seen, 2, "dead");
        for at in [2.0, 4.0, 6.0] {
            membership.update(&seen, at);
            // Now only one answers that has not heard of it.
            membership.update(&behind[..1], at + 1.0);
        }
        assert_eq!(told(&membership).len(), 4);
        assert_eq!(told(&membership)[0], (Change::Died, "trainer1".to_owned()));
        for one in &mut seen {
            samples::edit(one, |snapshot| {
                snapshot.peers[2].incarnation += 1;
                snapshot.peers[2].status = "alive".to_owned();
            });
        }
        for at in [8.0, 10.0] {
            membership.update(&seen, at);
            membership.update(&behind[..1], at + 1.0);
        }
        assert_eq!(told(&membership).len(), 5);
        assert_eq!(
            told(&membership)[0],
            (Change::Joined, "trainer1".to_owned())
        );
    }

    /// DM-3
    #[test]
    fn who_is_named_by_nobody_is_forgotten_and_no_more_are_kept_than_fit() {
        let mut membership = Membership::default();
        let mut seen = samples::group();
        membership.update(&seen, 0.0);
        for one in &mut seen {
            samples::edit(one, |snapshot| drop(snapshot.peers.pop()));
        }
        for look in 0..FORGOTTEN + 2 {
            membership.update(&seen, look as f64);
        }
        assert_eq!(membership.members.len(), 2);
        samples::edit(&mut seen[0], |snapshot| {
            let peer = snapshot.peers[0].clone();
            let made_up = (10..10 + 2 * MEMBERS as u32).map(|rank| {
                let mut peer = peer.clone();
                peer.rank = rank;
                peer
            });
            snapshot.peers.extend(made_up);
        });
        membership.update(&seen, 1e6);
        assert_eq!(membership.members.len(), MEMBERS);
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
        // The end of each life comes before the next one.
        let events: Vec<&Event> = membership.events().collect();
        for both in events.chunks(2) {
            let told: Vec<(Change, u32)> = both.iter().map(|one| (one.change, one.life)).collect();
            let life = told[0].1;
            assert_eq!(told, [(Change::Joined, life), (Change::Died, life - 1)]);
        }
    }
}
