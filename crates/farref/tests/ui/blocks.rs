//! Of several blocks of one type in one module, all but one say what their trait is called.

struct Table;

#[farref::remote]
impl Table {
    pub fn get(&self) {}
}

#[farref::remote]
impl Table {
    pub fn put(&mut self) {}
}

#[farref::remote(trait = TableMore)]
impl Table {
    pub fn more(&mut self) {}
}

fn main() {}
