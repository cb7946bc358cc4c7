//! What was seen of a worker, safe to print: what a peer can put into texts is cleaned once, here.

use std::collections::{HashMap, HashSet};

use farref::observe::Sighting;
use farref::{LeakedReference, Snapshot};

use super::text::clean;

/// A worker that was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) rank: u32,
    /// What it has, or why that is not known.
    pub(crate) snapshot: Result<Snapshot, String>,
}

impl Seen {
    pub(crate) fn new(name: &str, rank: u32, snapshot: Result<Snapshot, String>) -> Self {
        Self {
            name: clean(name),
            rank,
            snapshot: snapshot.map(clean_snapshot).map_err(|why| clean(&why)),
        }
    }

    /// The snapshot, if the worker has answered.
    pub(crate) fn answer(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().ok()
    }
}

impl From<Sighting> for Seen {
    fn from(sighting: Sighting) -> Self {
        let snapshot = sighting.snapshot.map_err(|error| error.to_string());
        Self::new(&sighting.name, sighting.rank, snapshot)
    }
}

fn clean_snapshot(mut snapshot: Snapshot) -> Snapshot {
    let texts = [&mut snapshot.version, &mut snapshot.worker].into_iter();
    let peers = snapshot.peers.iter_mut().flat_map(|peer| {
        let texts = [&mut peer.name, &mut peer.status].into_iter();
        texts.chain(&mut peer.transport).chain(&mut peer.addresses)
    });
    let calls = snapshot.running.iter_mut();
    let calls = calls.flat_map(|call| {
        let texts = [&mut call.function, &mut call.caller].into_iter();
        texts.chain(&mut call.value)
    });
    let waiting = snapshot.waiting.iter_mut().flat_map(|call| {
        let texts = [&mut call.function, &mut call.caller].into_iter();
        let values = call.value.iter_mut().chain(&mut call.held_by_callers);
        texts.chain(values).chain(&mut call.used_by)
    });
    let served = snapshot.served.iter_mut().map(|one| &mut one.function);
    let finished = snapshot.finished.iter_mut();
    let finished = finished.flat_map(|call| [&mut call.function, &mut call.caller]);
    let contexts = snapshot.open_contexts.iter_mut().flat_map(|context| {
        let texts = [&mut context.id, &mut context.opened_by].into_iter();
        texts.chain(&mut context.workers).chain(&mut context.notes)
    });
    let names = snapshot.names.iter_mut().flat_map(|one| {
        let texts = [&mut one.name, &mut one.type_name].into_iter();
        texts.chain([&mut one.owner, &mut one.value])
    });
    let calls = calls.chain(served.chain(finished)).chain(contexts);
    let calls = calls.chain(names);
    let calls = calls.chain(waiting);
    let references = snapshot.references.iter_mut().flat_map(reference_texts);
    for text in texts.chain(peers).chain(calls).chain(references) {
        // Most texts are clean.
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            *text = clean(text);
        }
    }
    snapshot
}

fn reference_texts(reference: &mut LeakedReference) -> impl Iterator<Item = &mut String> {
    let received = reference.received.iter_mut();
    let received = received.flat_map(|received| [&mut received.from, &mut received.function]);
    [
        &mut reference.id,
        &mut reference.type_name,
        &mut reference.owner,
        &mut reference.made_by,
    ]
    .into_iter()
    .chain(&mut reference.holders)
    .chain(&mut reference.location)
    .chain(received)
}

/// A member of the group that was not looked at, because the group knows that it is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gone {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) incarnation: u32,
    pub(crate) status: String,
}

/// Those who have died and whom nobody has replaced. Who left on purpose is nobody's concern.
pub(crate) fn dead(seen: &[Seen]) -> Vec<Gone> {
    let peers = seen
        .iter()
        .filter_map(Seen::answer)
        .flat_map(|snapshot| &snapshot.peers);
    let mut gone: Vec<Gone> = Vec::new();
    let mut known: HashSet<u32> = seen.iter().map(|seen| seen.rank).collect();
    for peer in peers.filter(|peer| peer.status == "dead") {
        if known.insert(peer.rank) {
            gone.push(Gone {
                name: peer.name.clone(),
                rank: peer.rank,
                incarnation: peer.incarnation,
                status: peer.status.clone(),
            });
        }
    }
    gone.sort_by_key(|gone| gone.rank);
    gone
}

/// The states of workers as the others see them, from one pass over all that was seen.
pub(crate) struct States<'a>(HashMap<u32, Opinions<'a>>);

/// What is said of one worker: which life, and how it is.
#[derive(Default)]
struct Opinions<'a> {
    of_others: Option<(u32, &'a str)>,
    own: Option<(u32, &'a str)>,
    /// Whether others do not agree with the first of them.
    differ: bool,
}

impl<'a> States<'a> {
    pub(crate) fn of(seen: &'a [Seen]) -> Self {
        let mut states: HashMap<u32, Opinions<'a>> = HashMap::new();
        let answers = seen
            .iter()
            .filter_map(|one| Some((one.rank, one.answer()?)));
        for (rank, snapshot) in answers {
            for peer in &snapshot.peers {
                let opinion = (peer.incarnation, &*peer.status);
                let known = states.entry(peer.rank).or_default();
                if peer.rank == rank {
                    known.own.get_or_insert(opinion);
                } else {
                    known.differ |= *known.of_others.get_or_insert(opinion) != opinion;
                }
            }
        }
        Self(states)
    }

    /// A worker's state: `alive?` means that they do not agree.
    pub(crate) fn state(&self, rank: u32) -> String {
        let opinions = self.0.get(&rank);
        // Who is alone knows best.
        let first = opinions.and_then(|all| all.of_others.or(all.own));
        let (Some(all), Some(first)) = (opinions, first) else {
            return "unknown".to_owned();
        };
        match !all.differ && all.own.is_none_or(|own| own == first) {
            true => first.1.to_owned(),
            false => format!("{}?", first.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn every_text_of_a_snapshot_is_cleaned() {
        let evil = "x\x1b[2J";
        let mut text = samples::json("zed", 0);
        let texts = [
            "zed",
            "parameters",
            "trainer",
            "train::",
            "tcp",
            "alive",
            "0.1.0",
            "src/",
            "Vec<",
            "@w0",
            "weights",
        ];
        for harmless in texts {
            assert!(text.contains(harmless));
            text = text.replace(harmless, &format!("{harmless}\\u001b"));
        }
        let snapshot = samples::parse(&text);
        assert!(format!("{snapshot:?}").contains("\\u{1b}"));
        let seen = Seen::new(evil, 0, Ok(snapshot));
        assert!(!format!("{seen:?}").contains("\\u{1b}"), "{seen:?}");
        let seen = Seen::new(evil, 0, Err(evil.to_owned()));
        assert!(!format!("{seen:?}").contains("\\u{1b}"));
    }

    #[test]
    fn the_dead_are_listed_until_they_are_replaced() {
        let mut seen = samples::group();
        assert_eq!(dead(&seen), []);
        let lost = seen.pop().expect("three workers");
        for seen in &mut seen {
            samples::edit(seen, |snapshot| {
                snapshot.peers[2].status = "dead".to_owned()
            });
        }
        assert_eq!(dead(&seen)[0].name, "trainer1");
        assert_eq!(States::of(&seen).state(2), "dead");
        seen.push(lost);
        assert_eq!(dead(&seen), []);
        assert_eq!(States::of(&seen).state(2), "dead?"); // it does not think so itself
        assert_eq!(States::of(&seen).state(7), "unknown");
        assert_eq!(States::of(&seen[2..]).state(2), "alive");
    }
}
