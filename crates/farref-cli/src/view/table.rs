//! Fitting a table into a width: columns shrink, then the ones that matter least are left out.

use super::text::{Cut, fit, width};

/// What stands between columns.
const GAP: usize = 2;

/// A table that has not been given a width yet.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A column's title and how it gives way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    right: bool,
    /// How narrow it may become, and which end of a text is cut then.
    shrinks: Option<(usize, Cut)>,
    /// Left out if there is too little room, the highest first; 0 is never.
    spare: u8,
}

impl Column {
    /// A number: never cut.
    pub(crate) fn number(title: &'static str) -> Self {
        Self {
            title,
            right: true,
            shrinks: None,
            spare: 0,
        }
    }

    /// A short text: never cut.
    pub(crate) fn word(title: &'static str) -> Self {
        Self {
            right: false,
            ..Self::number(title)
        }
    }

    /// A text that may be cut.
    pub(crate) fn text(title: &'static str, least: usize, cut: Cut) -> Self {
        Self {
            shrinks: Some((least, cut)),
            ..Self::word(title)
        }
    }

    /// Not shown if there is too little room; those with the highest number go first.
    pub(crate) fn spare(mut self, order: u8) -> Self {
        self.spare = order;
        self
    }
}

/// What a cell shows and what it is sorted by.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// For numbers.
    pub(crate) value: Option<f64>,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { text, value: None }
    }

    pub(crate) fn number(value: f64, shown: impl FnOnce(f64) -> String) -> Self {
        Self {
            text: shown(value),
            value: Some(value),
        }
    }

    /// Nothing is known, which is less than zero.
    pub(crate) fn none() -> Self {
        Self {
            text: "-".to_owned(),
            value: Some(-1.0),
        }
    }
}

/// A table that fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fitted {
    pub(crate) header: String,
    pub(crate) rows: Vec<String>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, row: impl Into<Vec<Cell>>) {
        self.rows.push(row.into());
    }

    /// Sorts by a column: numbers from the greatest down, texts upwards.
    pub(crate) fn sort(&mut self, column: usize) {
        self.rows.sort_by(|left, right| {
            let (Some(left), Some(right)) = (left.get(column), right.get(column)) else {
                return std::cmp::Ordering::Equal;
            };
            match (left.value, right.value) {
                (Some(left), Some(right)) => right.total_cmp(&left),
                _ => left.text.cmp(&right.text),
            }
        });
    }

    /// The lines of the table, none of which is wider.
    pub(crate) fn fit(&self, columns: usize) -> Fitted {
        let natural: Vec<usize> = (self.columns.iter().enumerate())
            .map(|(at, column)| {
                let cells = self.rows.iter().filter_map(|row| row.get(at));
                let widest = cells.map(|cell| width(&cell.text)).max().unwrap_or(0);
                widest.max(width(column.title))
            })
            .collect();
        let mut widths: Vec<Option<usize>> = natural.into_iter().map(Some).collect();
        while !self.shrink(&mut widths, columns) {
            let spare = (0..self.columns.len())
                .filter(|&at| widths[at].is_some() && self.columns[at].spare > 0)
                .max_by_key(|&at| self.columns[at].spare);
            let Some(at) = spare else {
                break;
            };
            widths[at] = None;
        }
        let line = |cells: &[&str]| {
            let line = self.line(cells, &widths);
            fit(&line, columns, Cut::Back)
        };
        let titles: Vec<&str> = self.columns.iter().map(|column| column.title).collect();
        let rows = self.rows.iter().map(|row| {
            let texts: Vec<&str> = row.iter().map(|cell| &*cell.text).collect();
            line(&texts)
        });
        Fitted {
            header: line(&titles),
            rows: rows.collect(),
        }
    }

    /// Makes the widest columns narrower until all fit; whether that is possible. The widths are
    /// changed only as far as it is.
    fn shrink(&self, widths: &mut [Option<usize>], columns: usize) -> bool {
        let shown = widths.iter().flatten().count();
        let total: usize = widths.iter().flatten().sum();
        let mut excess = (total + GAP * shown.saturating_sub(1)).saturating_sub(columns);
        let least = |at: usize| self.columns[at].shrinks.map(|(least, _)| least);
        let room =
            |at: usize, width: usize| least(at).map_or(0, |least| width.saturating_sub(least));
        let possible: usize = (widths.iter().enumerate())
            .filter_map(|(at, width)| Some(room(at, (*width)?)))
            .sum();
        let fits = possible >= excess;
        // If columns are left to be taken out, the rest is not cut for nothing.
        let spare = (0..widths.len()).any(|at| widths[at].is_some() && self.columns[at].spare > 0);
        if !fits && spare {
            return false;
        }
        while excess > 0 {
            let widest = (0..widths.len())
                .filter(|&at| widths[at].is_some_and(|width| room(at, width) > 0))
                .max_by_key(|&at| widths[at]);
            let Some(width) = widest.and_then(|at| widths[at].as_mut()) else {
                break;
            };
            *width -= 1;
            excess -= 1;
        }
        fits
    }

    fn line(&self, cells: &[&str], widths: &[Option<usize>]) -> String {
        let mut line = String::new();
        for ((cell, column), wanted) in cells.iter().zip(&self.columns).zip(widths) {
            let Some(wanted) = *wanted else {
                continue;
            };
            if !line.is_empty() {
                line.push_str(&" ".repeat(GAP));
            }
            let cut = column.shrinks.map_or(Cut::Back, |(_, cut)| cut);
            let cell = fit(cell, wanted, cut);
            let padding = " ".repeat(wanted - width(&cell));
            match column.right {
                true => line.extend([padding, cell]),
                false => line.extend([cell, padding]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new([
            Column::text("name", 4, Cut::Back),
            Column::number("count"),
            Column::text("line", 6, Cut::Front),
            Column::word("spare").spare(1),
        ]);
        let row = |name: &str, count: f64, line: &str| {
            let count = Cell::number(count, |count| format!("{count}"));
            vec![Cell::text(name), count, Cell::text(line), Cell::text("yes")]
        };
        table.push(row("a-rather-long-name", 7.0, "src/some/where/deep.rs:100"));
        table.push(row("b", 12.0, "src/main.rs:1"));
        table
    }

    #[test]
    fn no_line_is_wider_than_the_table() {
        let table = sample();
        for columns in 0..100 {
            let fitted = table.fit(columns);
            for line in fitted.rows.iter().chain([&fitted.header]) {
                assert!(width(line) <= columns, "{columns}: {line:?}");
            }
        }
    }

    #[test]
    fn columns_shrink_first_and_then_the_spare_ones_go() {
        let table = sample();
        let wide = table.fit(80);
        assert!(!wide.rows[0].contains('…') && wide.rows[0].ends_with(":100  yes"));
        let narrow = table.fit(40);
        assert!(narrow.header.ends_with("spare"));
        assert_eq!(narrow.rows[0].matches('…').count(), 2);
        let fitted = table.fit(22);
        assert!(fitted.header.ends_with("line"));
        assert!(fitted.rows[0].ends_with(":100"));
    }

    #[test]
    fn numbers_are_sorted_downwards_and_texts_upwards() {
        let mut table = sample();
        table.sort(1);
        assert_eq!(table.rows[0][0].text, "b");
        table.sort(0);
        assert_eq!(table.rows[0][0].text, "a-rather-long-name");
        table.sort(99); // no such column
    }
}
