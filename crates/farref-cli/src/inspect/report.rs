//! What was seen, as tables for a person.

use super::arguments::Arguments;
use crate::view::quantity::many;
use crate::view::references::{self, Reference};
use crate::view::seen::Seen;
use crate::view::table::Table;
use crate::view::tables;
use crate::view::text::{Cut, fit};

/// How much rows stand to the right of their title.
const INDENT: usize = 2;

pub(super) fn write(arguments: &Arguments, seen: &[Seen], columns: usize) -> String {
    let references = references::merge(seen);
    let mut page = Page {
        columns,
        text: String::new(),
    };
    if let Some(filter) = &arguments.filter {
        page.matching(&references, filter, arguments.full);
        page.silent(seen);
        return page.text;
    }
    page.table("workers", &tables::workers(seen));
    page.silent(seen);
    page.table("traffic and queues", &tables::traffic(seen));
    if arguments.links {
        page.table("links", &tables::links(seen));
    }
    page.calls(seen);
    page.names(arguments, seen);
    page.references(arguments, seen, &references);
    page.text
}

struct Page {
    columns: usize,
    text: String,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(&fit(text, self.columns, Cut::Back));
        self.text.push('\n');
    }

    fn title(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.line("");
        }
        self.line(title);
    }

    fn table(&mut self, title: &str, table: &Table) {
        self.title(title);
        let fitted = table.fit(self.columns - INDENT);
        for row in [fitted.header].into_iter().chain(fitted.rows) {
            self.line(&format!("{:INDENT$}{row}", ""));
        }
    }

    /// Why workers did not answer.
    fn silent(&mut self, seen: &[Seen]) {
        let silent = seen
            .iter()
            .filter_map(|one| Some((&one.name, one.snapshot.as_ref().err()?)));
        for (index, (name, why)) in silent.enumerate() {
            if index == 0 {
                self.title("no answer");
            }
            // Uncut: this is what has to be understood.
            self.text
                .push_str(&format!("{:INDENT$}{name}: {why}\n", ""));
        }
    }

    fn calls(&mut self, seen: &[Seen]) {
        let running = tables::running(seen);
        match running.rows.len() {
            0 => self.title("no calls run"),
            count => self.table(&format!("{} running", many(count, "call")), &running),
        }
        let stuck = tables::stuck(seen);
        match stuck.rows.len() {
            0 => {}
            1 => self.table("1 call waits to run", &stuck),
            count => self.table(&format!("{count} calls wait to run"), &stuck),
        }
        let waiting = tables::waiting(seen);
        if !waiting.rows.is_empty() {
            self.table("calls in flight", &waiting);
        }
    }

    fn names(&mut self, arguments: &Arguments, seen: &[Seen]) {
        let names = tables::names(seen, arguments.full);
        if !names.rows.is_empty() {
            let title = format!("{} published", many(names.rows.len(), "name"));
            self.table(&title, &names);
        }
        let unseen = tables::unseen_names(seen);
        if unseen > 0 {
            let text = format!("and {unseen} more: a worker tells of 1000 of its names at most");
            self.line(&format!("{:INDENT$}{text}", ""));
        }
    }

    fn references(&mut self, arguments: &Arguments, seen: &[Seen], references: &[Reference]) {
        let title = many(references.len(), "reference");
        if references.is_empty() {
            self.title("no references");
        } else if arguments.references {
            let table = tables::holders(&references.iter().collect::<Vec<_>>(), arguments.full);
            self.table(&title, &table);
        } else {
            let groups = references::groups(references, arguments.by, arguments.full);
            let title = format!("{title} by {}", arguments.by.name());
            self.table(&title, &tables::groups(&groups, arguments.by));
        }
        self.unseen(seen);
    }

    /// How many references are not shown.
    fn unseen(&mut self, seen: &[Seen]) {
        for one in seen {
            let Some(snapshot) = one.answer() else {
                continue;
            };
            let (shown, all) = (snapshot.references.len(), snapshot.references_in_all);
            if shown < all {
                let name = &one.name;
                let text =
                    format!("{name} has {all} references, of which it shows {shown}: see --limit");
                self.line(&format!("{:INDENT$}{text}", ""));
            }
        }
    }

    fn matching(&mut self, references: &[Reference], filter: &str, full: bool) {
        let found: Vec<&Reference> = references
            .iter()
            .filter(|one| one.matches(filter))
            .collect();
        let all = many(references.len(), "reference");
        if found.is_empty() {
            self.title(&format!("none of {all} matches `{filter}`"));
            return;
        }
        let title = format!("{} of {all} match `{filter}`", found.len());
        self.table(&title, &tables::holders(&found, full));
    }
}
