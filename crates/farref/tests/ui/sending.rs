//! What is sent is serde's to write and to read. A mistake is shown where it is.

#![allow(unused_variables)]

struct Table;

#[farref::remote]
impl Table {
    pub fn new(rows: usize) -> Self {
        Table
    }
}

async fn awaited(peer: &farref::Peer) {
    let table = Table::new_on(peer, 3).await;
}

#[farref::remote]
fn store(name: String, table: Table, copies: u8) {}

fn main() {}
