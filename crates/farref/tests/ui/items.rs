//! The attribute is for functions and for impl blocks of types with names.

#[farref::remote]
struct Table {
    rows: Vec<f32>,
}

#[farref::remote]
impl Default for Table {
    fn default() -> Self {
        Table { rows: Vec::new() }
    }
}

#[farref::remote]
impl Table {
    const ROWS: usize = 3;

    fn private(&self) -> usize {
        self.rows.len() + Self::ROWS
    }
}

struct Generic<T>(T);

#[farref::remote]
impl<T: Clone> Generic<T> {
    pub fn value(&self) -> T {
        self.0.clone()
    }
}

#[farref::remote]
trait Rows {}

mod unmarked {
    struct Table;

    impl Table {
        #[farref::remote]
        pub fn get(&self) {}
    }
}

fn main() {}
