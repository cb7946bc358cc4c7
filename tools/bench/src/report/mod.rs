//! The results: as they come, as a table, as JSON and as a page.
//!
//! | part | job |
//! | --- | --- |
//! | [`measurement`] | one figure, with the limits that it is held against |
//! | [`words`] | how figures and their names are written |
//! | [`table`] | for the terminal |
//! | [`page`], [`plot`] | for the browser |

mod measurement;
mod page;
mod plot;
mod results;
mod table;
mod words;

pub(super) use measurement::Measurement;
pub(super) use results::{Recorder, Report};

impl Report {
    pub(super) fn table(&self) -> String {
        table::write(self)
    }

    pub(super) fn page(&self) -> String {
        page::write(self)
    }
}
