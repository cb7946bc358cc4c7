//! What is said of a function holds for calls of it.

#![deny(deprecated, unused_must_use)]

struct Table;

#[farref::remote]
impl Table {
    #[deprecated(note = "the new way is better")]
    pub fn old(&self) {}

    #[must_use = "the size is the point"]
    pub fn size(&self) -> usize {
        0
    }

    /// What is not there, nothing is made of.
    #[cfg(any())]
    pub fn absent(&self) -> Nowhere {}

    #[cfg_attr(all(), must_use = "so is this")]
    pub fn conditional(&self) -> usize {
        0
    }
}

#[deprecated]
#[farref::remote]
fn old() {}

async fn calls(peer: &farref::Peer, table: &farref::RRef<Table>) {
    let _ = old::on(peer);
    let _ = table.old();
    let _ = Table::old_on(table);
    table.size();
    table.conditional();
}

fn main() {
    let _ = calls;
}
