//! What is shown, and how looks and keys change it. Nothing here draws or waits.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rates::{self, Rates};
use crate::view::fetch::Update;
use crate::view::references::{self, By, Reference};
use crate::view::seen::Seen;
use crate::view::table::{Cell, Column, Table};
use crate::view::text::{Cut, clean};
use crate::view::{quantity, tables};

/// What can be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tab {
    Workers,
    Calls,
    References,
    Links,
}

impl Tab {
    pub(super) const ALL: [Self; 4] = [Self::Workers, Self::Calls, Self::References, Self::Links];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Calls => "calls",
            Self::References => "references",
            Self::Links => "links",
        }
    }
}

/// Which references are shown one by one.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Filter {
    Text(String),
    /// Those of a group.
    Group(By, Vec<String>),
}

/// A table with a title.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) table: Table,
}

/// Everything that the screen depends on.
#[derive(Debug)]
pub(super) struct TopState {
    pub(super) place: String,
    pub(super) tab: Tab,
    pub(super) seen: Vec<Seen>,
    references: Vec<Reference>,
    pub(super) rates: Rates,
    /// Why nobody can be found.
    lost: Option<String>,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// What is being typed after `/`.
    pub(super) typing: Option<String>,
    filter: Option<Filter>,
    by: By,
    /// The chosen row of each tab.
    chosen: [usize; 4],
    /// The column that each tab is sorted by.
    sorted: [Option<usize>; 4],
    /// How many rows a page has.
    page: usize,
    over: bool,
}

impl TopState {
    pub(super) fn new(place: &str) -> Self {
        Self {
            place: clean(place),
            tab: Tab::Workers,
            seen: Vec::new(),
            references: Vec::new(),
            rates: Rates::default(),
            lost: None,
            paused: false,
            help: false,
            typing: None,
            filter: None,
            by: By::All,
            chosen: [0; 4],
            sorted: [None; 4],
            page: 10,
            over: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn resize(&mut self, height: u16) {
        self.page = usize::from(height.saturating_sub(8)).max(1);
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::End => self.over = true,
            Update::Lost(why) => self.lost = Some(why),
            Update::Seen(seen) => {
                self.lost = None;
                // The last that was seen stays on the screen when all are gone.
                if !self.paused && !seen.is_empty() {
                    self.rates.update(&seen);
                    self.references = references::merge(&seen);
                    self.seen = seen;
                }
            }
        }
    }

    pub(super) fn key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.over |= matches!(key.code, KeyCode::Char('c' | 'd'));
            return;
        }
        if self.typing.is_some() {
            return self.type_key(key.code);
        }
        if self.help {
            self.help = false;
            self.over |= key.code == KeyCode::Char('q');
            return;
        }
        match key.code {
            KeyCode::Char('q') => self.over = true,
            KeyCode::Esc => match self.filter.take() {
                Some(_) => self.choose(|_| 0),
                None => self.over = true,
            },
            KeyCode::Tab => self.switch(1),
            KeyCode::BackTab => self.switch(Tab::ALL.len() - 1),
            KeyCode::Char('1') => self.tab = Tab::Workers,
            KeyCode::Char('2') => self.tab = Tab::Calls,
            KeyCode::Char('3') => self.tab = Tab::References,
            KeyCode::Char('4') => self.tab = Tab::Links,
            KeyCode::Down | KeyCode::Char('j') => self.choose(|row| row + 1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(|row| row.saturating_sub(1)),
            KeyCode::PageDown => {
                let page = self.page;
                self.choose(|row| row + page);
            }
            KeyCode::PageUp => {
                let page = self.page;
                self.choose(|row| row.saturating_sub(page));
            }
            KeyCode::Home => self.choose(|_| 0),
            KeyCode::End => self.choose(|_| usize::MAX),
            KeyCode::Char('/') => {
                self.tab = Tab::References;
                self.typing = Some(String::new());
            }
            KeyCode::Enter => self.enter(),
            KeyCode::Char('g') => {
                self.by = self.by.next();
                self.filter = None;
                self.sorted[Tab::References as usize] = None;
                self.choose(|_| 0);
            }
            KeyCode::Char('s') => self.sort(),
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            _ => {}
        }
    }

    fn type_key(&mut self, code: KeyCode) {
        let Some(text) = &mut self.typing else {
            return;
        };
        match code {
            KeyCode::Char(character) if text.len() < 200 => text.push(character),
            KeyCode::Backspace if text.is_empty() => self.typing = None,
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => {
                self.typing = None;
                self.filter = None;
            }
            _ => {}
        }
        if let Some(text) = &self.typing {
            self.filter = (!text.is_empty()).then(|| Filter::Text(text.clone()));
        }
        self.choose(|_| 0);
    }

    fn switch(&mut self, by: usize) {
        self.tab = Tab::ALL[(self.tab as usize + by) % Tab::ALL.len()];
    }

    fn choose(&mut self, change: impl FnOnce(usize) -> usize) {
        let last = self.rows().saturating_sub(1);
        let chosen = &mut self.chosen[self.tab as usize];
        *chosen = change((*chosen).min(last)).min(last);
    }

    fn rows(&self) -> usize {
        self.sections()
            .iter()
            .map(|section| section.table.rows.len())
            .sum()
    }

    /// The chosen row, counted over all sections.
    pub(super) fn chosen(&self) -> usize {
        self.chosen[self.tab as usize]
    }

    /// Shows the references of the chosen group one by one.
    fn enter(&mut self) {
        if self.tab != Tab::References || self.filter.is_some() {
            return;
        }
        let sections = self.sections();
        let table = sections.last().map(|section| &section.table);
        let row = table.and_then(|table| table.rows.get(self.chosen()));
        // After the count and the age, a row has the group's key.
        let key = row.map(|row| row.iter().skip(2).map(|cell| cell.text.clone()).collect());
        if let Some(key) = key {
            self.filter = Some(Filter::Group(self.by, key));
            self.choose(|_| 0);
        }
    }

    /// The next column, or after the last one the order that it was in.
    fn sort(&mut self) {
        // Holders belong to the reference above them.
        if self.lists_holders() {
            return;
        }
        let columns = self
            .sections()
            .last()
            .map_or(0, |last| last.table.columns.len());
        let sorted = &mut self.sorted[self.tab as usize];
        *sorted = match *sorted {
            None if columns > 0 => Some(0),
            Some(column) if column + 1 < columns => Some(column + 1),
            _ => None,
        };
    }

    fn lists_holders(&self) -> bool {
        self.tab == Tab::References && self.filter.is_some()
    }

    /// What the tab is sorted by.
    pub(super) fn sorted_by(&self) -> Option<&'static str> {
        if self.lists_holders() {
            return None;
        }
        let column = self.sorted[self.tab as usize]?;
        let sections = self.sections();
        Some(sections.last()?.table.columns.get(column)?.title)
    }

    /// What the tab shows.
    pub(super) fn sections(&self) -> Vec<Section> {
        let seen = &self.seen;
        let section = |title: String, table| Section { title, table };
        let mut sections = match self.tab {
            Tab::Workers => {
                let silent = silent(seen);
                let mut sections = Vec::new();
                if !silent.rows.is_empty() {
                    sections.push(section("no answer".to_owned(), silent));
                }
                let title = quantity::many(seen.len(), "worker");
                sections.push(section(title, rates::table(seen, &self.rates)));
                sections
            }
            Tab::Calls => {
                let running = tables::running(seen);
                let title = format!("{} running", quantity::many(running.rows.len(), "call"));
                let mut sections = vec![section("in flight".to_owned(), tables::waiting(seen))];
                let stuck = tables::stuck(seen);
                if !stuck.rows.is_empty() {
                    sections.push(section("waiting to run".to_owned(), stuck));
                }
                sections.push(section(title, running));
                sections
            }
            Tab::References => return vec![self.reference_section()],
            Tab::Links => vec![
                section("traffic and queues".to_owned(), tables::traffic(seen)),
                section("links".to_owned(), tables::links(seen)),
            ],
        };
        if let (Some(column), Some(last)) = (self.sorted[self.tab as usize], sections.last_mut()) {
            last.table.sort(column);
        }
        sections.retain(|section| !section.table.rows.is_empty());
        sections
    }

    fn reference_section(&self) -> Section {
        let all = quantity::many(self.references.len(), "reference");
        let Some(filter) = &self.filter else {
            let groups = references::groups(&self.references, self.by, false);
            let mut table = tables::groups(&groups, self.by);
            if let Some(column) = self.sorted[Tab::References as usize] {
                table.sort(column);
            }
            let title = format!("{all} by {}", self.by.name());
            return Section { title, table };
        };
        let wanted = |reference: &&Reference| match filter {
            Filter::Text(text) => reference.matches(text),
            Filter::Group(by, key) => by.keys(reference, false).contains(key),
        };
        let found: Vec<&Reference> = self.references.iter().filter(wanted).collect();
        let what = match filter {
            Filter::Text(text) => format!("with `{}`", clean(text)),
            Filter::Group(_, key) => format!("of {}", key.join(", ")),
        };
        let title = format!("who keeps them alive: {} of {all} {what}", found.len());
        let table = tables::holders(&found, false);
        Section { title, table }
    }

    /// What is wrong, if anything is.
    pub(super) fn problem(&self) -> Option<String> {
        if let Some(why) = &self.lost {
            return Some(format!("trying again: {why}"));
        }
        let mut silent = self
            .seen
            .iter()
            .filter_map(|one| Some((one, one.snapshot.as_ref().err()?)));
        let (one, why) = silent.next()?;
        Some(match silent.count() {
            0 => format!("no answer from {}: {why}", one.name),
            more => format!("no answer from {} and {more} more: {why}", one.name),
        })
    }
}

/// Who does not answer, and why.
fn silent(seen: &[Seen]) -> Table {
    let why = Column::text("why", 20, Cut::Back);
    let mut table = Table::new([tables::name("worker"), why]);
    for one in seen {
        if let Err(why) = &one.snapshot {
            table.push([Cell::text(&one.name), Cell::text(why)]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    fn state() -> TopState {
        let mut state = TopState::new("127.0.0.1:29500");
        state.update(Update::Seen(samples::group()));
        state
    }

    fn press(state: &mut TopState, codes: impl IntoIterator<Item = KeyCode>) {
        for code in codes {
            state.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    fn type_in(state: &mut TopState, text: &str) {
        press(state, text.chars().map(KeyCode::Char));
    }

    #[test]
    fn every_way_to_quit_quits() {
        for key in [
            KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE),
            KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            let mut state = state();
            state.key(key);
            assert!(state.is_over(), "{key:?}");
        }
        let mut state = state();
        type_in(&mut state, "/");
        state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(state.is_over());
        let mut state = TopState::new("nowhere");
        state.update(Update::End);
        assert!(state.is_over());
    }

    #[test]
    fn what_is_typed_after_a_slash_is_looked_for_and_never_taken_for_a_command() {
        let mut state = state();
        type_in(&mut state, "/qxyz8");
        assert!(!state.is_over());
        press(&mut state, [KeyCode::Home]);
        assert_eq!(state.sections()[0].table.rows.len(), 0);
        press(&mut state, (0..5).map(|_| KeyCode::Backspace));
        type_in(&mut state, "log.rs");
        press(&mut state, [KeyCode::Enter]);
        assert_eq!(state.sections()[0].table.rows.len(), 1);
        press(&mut state, [KeyCode::Esc]);
        assert!(!state.is_over() && state.sections()[0].title.starts_with("43 references by"));
    }

    #[test]
    fn a_group_opens_into_its_references_whatever_it_is_sorted_by() {
        for presses in 0..6 {
            let mut state = state();
            press(&mut state, [KeyCode::Char('3')]);
            press(&mut state, (0..presses).map(|_| KeyCode::Char('s')));
            let count = state.sections()[0].table.rows[0][0].value;
            press(&mut state, [KeyCode::Enter]);
            let section = &state.sections()[0];
            let shown = section
                .table
                .rows
                .iter()
                .filter(|row| !row[0].text.is_empty())
                .count();
            assert_eq!(Some(shown as f64), count, "{}", section.title);
        }
    }

    #[test]
    fn the_chosen_row_stays_inside_whatever_happens() {
        let mut state = state();
        type_in(&mut state, "/vec");
        press(
            &mut state,
            [
                KeyCode::Enter,
                KeyCode::End,
                KeyCode::Down,
                KeyCode::PageDown,
            ],
        );
        assert_eq!(state.chosen(), 83);
        let alone = samples::group().split_off(2);
        state.update(Update::Seen(alone));
        press(&mut state, [KeyCode::Up]);
        assert_eq!(state.chosen(), 39);
        press(&mut state, [KeyCode::Home, KeyCode::Up, KeyCode::PageUp]);
        assert_eq!(state.chosen(), 0);
        let mut empty = TopState::new("nowhere");
        press(
            &mut empty,
            [
                KeyCode::Down,
                KeyCode::End,
                KeyCode::Enter,
                KeyCode::Char('s'),
            ],
        );
        press(
            &mut empty,
            [KeyCode::Char('3'), KeyCode::Enter, KeyCode::Down],
        );
        assert_eq!(empty.chosen(), 0);
    }

    #[test]
    fn a_pause_keeps_what_is_shown() {
        let mut state = state();
        type_in(&mut state, " ");
        state.update(Update::Seen(samples::group().split_off(2)));
        assert_eq!(state.seen.len(), 3);
        type_in(&mut state, " ");
        state.update(Update::Seen(samples::group().split_off(2)));
        assert_eq!(state.seen.len(), 1);
    }

    #[test]
    fn the_last_that_was_seen_stays_while_the_connection_is_lost() {
        let mut state = state();
        state.update(Update::Seen(Vec::new()));
        state.update(Update::Lost("nobody there".to_owned()));
        assert_eq!(state.seen.len(), 3);
        assert_eq!(
            state.problem().as_deref(),
            Some("trying again: nobody there")
        );
        state.update(Update::Seen(samples::group()));
        assert_eq!(state.problem(), None);
    }
}
