//! Methods of far values: what they can be called on, and what they can be called.

#![allow(unused_variables)]

use std::sync::Arc;

struct Table;

#[farref::remote]
impl Table {
    pub fn consume(self) {}

    pub fn shared(self: Arc<Self>) {}

    pub fn owner(&self) -> u8 {
        0
    }

    pub fn clone(&self) -> Self {
        Table
    }

    #[remote(blocking)]
    pub async fn wait(&self) {}

    #[remote(skip, timeout = "5s")]
    pub fn skipped(&self) {}

    #[remote]
    #[remote(task)]
    fn twice(&self) {}

    #[remote = "task"]
    fn assigned(&self) {}

    #[remote(trait = Other)]
    fn misplaced(&self) {}

    pub fn merge(&mut self, other: &Self) {}
}

fn main() {}
