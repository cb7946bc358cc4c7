//! Tables of what was seen: workers, traffic, calls, references, links.

use std::collections::BTreeMap;
use std::time::Duration;

use farref::{PeerSnapshot, Snapshot};

use super::quantity;
use super::references::{By, Group, RECEIVED, Reference, short_ids, shown_line, shown_type};
use super::seen::{self, Gone, Seen, States};
use super::table::{Cell, Column, Table};
use super::text::Cut;

pub(crate) fn name(title: &'static str) -> Column {
    Column::text(title, 10, Cut::Back)
}

pub(crate) fn count(value: impl TryInto<u64>) -> Cell {
    let value = value.try_into().unwrap_or(u64::MAX);
    Cell::number(value as f64, quantity::count)
}

pub(crate) fn bytes(value: impl TryInto<u64>) -> Cell {
    let value = value.try_into().unwrap_or(u64::MAX);
    Cell::number(value as f64, quantity::bytes)
}

pub(crate) fn age(age: Option<Duration>) -> Cell {
    age.map_or_else(Cell::none, |age| Cell {
        text: quantity::age(age),
        value: Some(age.as_secs_f64()),
    })
}

/// Lives follow the clock: two may differ in the last digit.
pub(crate) fn life(incarnation: u32) -> Cell {
    whole(incarnation)
}

/// A rank is a name and no quantity: those of workers that were given none begin at 16384.
pub(crate) fn rank(rank: u32) -> Cell {
    whole(rank)
}

/// A number of which every digit counts.
fn whole(number: u32) -> Cell {
    Cell::number(f64::from(number), |number| number.to_string())
}

/// A sum over a worker's peers, whatever it says of them.
pub(crate) fn sum(snapshot: &Snapshot, what: impl Fn(&PeerSnapshot) -> u64) -> u64 {
    let numbers = snapshot.peers.iter().map(what);
    numbers.fold(0, u64::saturating_add)
}

/// The cells that every row about a worker begins with: name, rank, life, state, uptime, open calls,
/// references, contexts.
pub(crate) fn who(states: &States<'_>, one: &Seen) -> Vec<Cell> {
    let mut row = vec![Cell::text(&one.name), rank(one.rank)];
    let state = Cell::text(states.state(one.rank));
    match one.answer() {
        Some(snapshot) => row.extend([
            life(snapshot.incarnation),
            state,
            age(Some(snapshot.uptime)),
            count(snapshot.open_calls),
            count(snapshot.references_in_all as u64),
            count(snapshot.contexts),
        ]),
        None => {
            row.extend([Cell::none(), state]);
            row.extend((0..4).map(|_| Cell::none()));
        }
    }
    row
}

/// The row of a worker that is gone: name, rank, life, state, and so many cells with nothing in them.
pub(crate) fn who_was(gone: Gone, empty: usize) -> Vec<Cell> {
    let mut row = vec![
        Cell::text(gone.name),
        rank(gone.rank),
        life(gone.incarnation),
        Cell::text(gone.status),
    ];
    row.extend((0..empty).map(|_| Cell::none()));
    row
}

/// Who is there, and what each has.
pub(crate) fn workers(seen: &[Seen]) -> Table {
    let mut table = Table::new([
        name("worker"),
        Column::number("rank"),
        Column::number("life").spare(1),
        Column::word("state"),
        Column::number("uptime"),
        Column::number("open"),
        Column::number("refs"),
        Column::number("ctxs"),
        Column::number("made"),
        Column::number("served"),
    ]);
    let states = States::of(seen);
    for one in seen {
        let mut row = who(&states, one);
        let totals = one.answer().map(|snapshot| &snapshot.totals);
        row.extend([
            totals.map_or_else(Cell::none, |totals| count(totals.calls)),
            totals.map_or_else(Cell::none, |totals| count(totals.served)),
        ]);
        table.push(row);
    }
    for gone in seen::dead(seen) {
        table.push(who_was(gone, 6));
    }
    table
}

/// What each worker has sent and received, what failed, and what waits.
pub(crate) fn traffic(seen: &[Seen]) -> Table {
    let mut table = Table::new([
        name("worker"),
        Column::number("sent"),
        Column::number("received"),
        Column::number("failed"),
        Column::number("queued"),
        Column::number("messages"),
        Column::number("held back"),
        Column::number("blocking"),
        Column::number("contexts").spare(1),
    ]);
    for one in seen {
        let Some(snapshot) = one.answer() else {
            continue;
        };
        let totals = &snapshot.totals;
        table.push([
            Cell::text(&one.name),
            bytes(totals.bytes_sent),
            bytes(totals.bytes_received),
            count(totals.calls_failed.saturating_add(totals.served_failed)),
            bytes(sum(snapshot, |peer| peer.queued_bytes as u64)),
            count(sum(snapshot, |peer| peer.queued_messages as u64)),
            count(sum(snapshot, |peer| peer.calls_held_back as u64)),
            count(snapshot.blocking_queue as u64),
            count(snapshot.contexts),
        ]);
    }
    table
}

/// The functions that run, the oldest first.
pub(crate) fn running(seen: &[Seen]) -> Table {
    let mut table = Table::new([
        Column::number("age"),
        Column::text("function", 20, Cut::Front),
        name("runs on"),
        name("called by"),
    ]);
    let answers = seen
        .iter()
        .filter_map(|one| Some((&one.name, one.answer()?)));
    for (worker, snapshot) in answers {
        for call in &snapshot.running {
            table.push([
                age(Some(call.age)),
                Cell::text(&call.function),
                Cell::text(worker),
                Cell::text(&call.caller),
            ]);
        }
    }
    table.sort(0);
    table
}

/// The calls that have arrived and wait, the oldest first. A deadlock is two of them that wait for each other's.
pub(crate) fn stuck(seen: &[Seen]) -> Table {
    let mut table = Table::new([
        Column::number("age"),
        Column::text("function", 12, Cut::Front),
        name("waits on"),
        name("called by"),
        Column::text("for", 12, Cut::Back),
        Column::text("used by", 10, Cut::Front),
    ]);
    let answers = seen
        .iter()
        .filter_map(|one| Some((&one.name, one.answer()?)));
    for (worker, snapshot) in answers {
        for call in &snapshot.waiting {
            let used_by = match &call.used_by[..] {
                [] => Cell::none(),
                used_by => Cell::text(used_by.join(", ")),
            };
            table.push([
                age(Some(call.age)),
                Cell::text(&call.function),
                Cell::text(worker),
                Cell::text(&call.caller),
                Cell::text(call.waits_for.to_string()),
                used_by,
            ]);
        }
    }
    table.sort(0);
    table
}

/// Calls that are not answered, by caller and callee.
pub(crate) fn waiting(seen: &[Seen]) -> Table {
    #[derive(Default)]
    struct Pair {
        made: usize,
        held_back: usize,
        served: usize,
    }
    let mut pairs: BTreeMap<(&str, &str), Pair> = BTreeMap::new();
    let answers = seen
        .iter()
        .filter_map(|one| Some((&*one.name, one.answer()?)));
    for (worker, snapshot) in answers {
        for peer in &snapshot.peers {
            if peer.calls_made > 0 {
                let pair = pairs.entry((worker, &peer.name)).or_default();
                pair.made = peer.calls_made;
                pair.held_back = peer.calls_held_back;
            }
            if peer.calls_served > 0 {
                pairs.entry((&peer.name, worker)).or_default().served = peer.calls_served;
            }
        }
    }
    let mut table = Table::new([
        name("from"),
        name("to"),
        Column::number("unanswered"),
        Column::number("held back"),
        Column::number("taken up"),
    ]);
    for ((from, to), pair) in pairs {
        table.push([
            Cell::text(from),
            Cell::text(to),
            count(pair.made as u64),
            count(pair.held_back as u64),
            count(pair.served as u64),
        ]);
    }
    table
}

/// Groups of references.
pub(crate) fn groups(groups: &[Group], by: By) -> Table {
    let column = |title: &&'static str| match *title {
        "got at" => Column::text(title, 16, Cut::Front),
        "type" => Column::text(title, 16, Cut::Back),
        other => name(other),
    };
    let mut columns = vec![Column::number("count"), Column::number("oldest")];
    columns.extend(by.titles().iter().map(column));
    let mut table = Table::new(columns);
    for group in groups {
        let mut row = vec![count(group.count as u64), age(group.oldest)];
        row.extend(group.key.iter().map(Cell::text));
        table.push(row);
    }
    table
}

/// Each reference with each of its holders, one line per holder.
pub(crate) fn holders(references: &[&Reference], full: bool) -> Table {
    let mut table = Table::new([
        Column::word("id"),
        Column::text("type", 12, Cut::Back),
        name("owner"),
        name("held by"),
        Column::number("for"),
        Column::text("got at", 14, Cut::Front),
    ]);
    let ids = match full {
        true => references.iter().map(|one| &*one.id).collect(),
        false => short_ids(references),
    };
    for (reference, id) in references.iter().zip(ids) {
        let mut first = [
            Cell::text(id),
            Cell::text(shown_type(&reference.type_name, full)),
            Cell::text(&reference.owner),
        ]
        .to_vec();
        for (holder, hold) in &reference.holds {
            let line = match (&hold.line, hold.age) {
                (Some(line), _) => shown_line(line, full),
                (None, Some(_)) => RECEIVED,
                (None, None) => "-",
            };
            let mut row = std::mem::replace(&mut first, vec![Cell::text(""); 3]);
            row.extend([Cell::text(holder), age(hold.age), Cell::text(line)]);
            table.push(row);
        }
        if reference.holds.is_empty() {
            first.extend([Cell::text(reference.holders()), Cell::none(), Cell::none()]);
            table.push(first);
        }
    }
    table
}

/// The names that references are published under, by publisher.
pub(crate) fn names(seen: &[Seen], full: bool) -> Table {
    let mut table = Table::new([
        Column::text("name", 16, Cut::Back),
        name("publisher"),
        Column::number("version"),
        Column::text("type", 16, Cut::Back),
        name("value on"),
    ]);
    let answers = seen.iter().filter_map(|one| Some((one, one.answer()?)));
    for (worker, snapshot) in answers {
        for one in &snapshot.names {
            table.push([
                Cell::text(&one.name),
                Cell::text(&worker.name),
                Cell::number(one.version as f64, |version| version.to_string()),
                Cell::text(shown_type(&one.type_name, full)),
                Cell::text(&one.owner),
            ]);
        }
    }
    table
}

/// How many names there are that nobody told of.
pub(crate) fn unseen_names(seen: &[Seen]) -> usize {
    let unseen = seen
        .iter()
        .filter_map(Seen::answer)
        .map(|one| one.names_in_all.saturating_sub(one.names.len()));
    unseen.fold(0, usize::saturating_add)
}

/// Every link, from each of its ends.
pub(crate) fn links(seen: &[Seen]) -> Table {
    let mut table = Table::new([
        name("worker"),
        name("peer"),
        Column::word("state"),
        Column::word("over"),
        Column::number("breaks"),
        Column::number("sent"),
        Column::number("received"),
        Column::number("queued"),
        Column::number("messages").spare(1),
        Column::number("from memory").spare(2),
        Column::number("in place").spare(2),
    ]);
    let answers = seen.iter().filter_map(|one| Some((one, one.answer()?)));
    for (worker, snapshot) in answers {
        for peer in snapshot
            .peers
            .iter()
            .filter(|peer| peer.rank != worker.rank)
        {
            table.push([
                Cell::text(&worker.name),
                Cell::text(&peer.name),
                Cell::text(&peer.status),
                Cell::text(peer.transport.as_deref().unwrap_or("-")),
                count(peer.connections.saturating_sub(1)),
                bytes(peer.bytes_sent),
                bytes(peer.bytes_received),
                bytes(peer.queued_bytes as u64),
                count(peer.queued_messages as u64),
                bytes(peer.bytes_from_memory),
                bytes(peer.bytes_in_place),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::{references, samples};
    use super::*;

    #[test]
    fn every_table_fits_80_columns_without_cutting_names_that_are_short() {
        let seen = samples::group();
        let references = references::merge(&seen);
        let all = references::groups(&references, By::All, false);
        for table in [
            workers(&seen),
            traffic(&seen),
            running(&seen),
            stuck(&seen),
            waiting(&seen),
            groups(&all, By::All),
            holders(&references.iter().collect::<Vec<_>>(), false),
            links(&seen),
            names(&seen, false),
        ] {
            let fitted = table.fit(78);
            for row in fitted.rows.iter().chain([&fitted.header]) {
                assert!(!row.contains('…') && row.len() <= 78, "{row}");
            }
        }
    }

    #[test]
    fn the_rank_of_a_worker_that_was_given_none_is_shown_in_full() {
        let mut seen = samples::group();
        seen[1].rank = 16_384;
        seen[2].rank = 16_385;
        let table = workers(&seen);
        let ranks: Vec<_> = table.rows.iter().map(|row| &*row[1].text).collect();
        assert_eq!(ranks[..3], ["0", "16384", "16385"]);
    }

    #[test]
    fn who_does_not_answer_has_a_row_all_the_same() {
        let mut seen = samples::group();
        seen[1].snapshot = Err("gone".to_owned());
        let table = workers(&seen);
        assert_eq!(table.rows.len(), 3);
        let row: Vec<_> = table.rows[1].iter().map(|cell| &*cell.text).collect();
        assert_eq!(row[..4], ["trainer0", "1", "-", "alive"]);
        assert!(row.len() == table.columns.len());
    }

    #[test]
    fn a_call_that_waits_is_told_from_one_that_runs() {
        let seen = samples::group();
        let function = |table: &Table| -> Vec<String> {
            let rows = table.rows.iter();
            rows.map(|row| row[1].text.clone()).collect()
        };
        assert_eq!(
            function(&running(&seen)),
            ["train::layers::forward_and_keep"; 3]
        );
        let stuck = stuck(&seen);
        assert_eq!(function(&stuck), ["train::Layer::apply"]);
        let row: Vec<_> = stuck.rows[0].iter().map(|cell| &*cell.text).collect();
        assert_eq!(
            row[2..],
            ["parameters", "trainer0", "its turn", "train::Layer::step"]
        );
    }

    #[test]
    fn a_call_is_counted_once_though_both_ends_tell_of_it() {
        let table = waiting(&samples::group());
        assert_eq!(table.rows.len(), 9);
        assert_eq!(table.rows[0][2].text, "1");
        assert_eq!(table.rows[0][4].text, "1");
    }
}
