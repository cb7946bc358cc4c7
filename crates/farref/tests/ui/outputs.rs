//! What is returned leaves the function, or outlives it.

struct Table {
    name: String,
}

#[farref::remote]
impl Table {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn checked_name(&self) -> Result<Option<&String>, std::fmt::Error> {
        Ok(Some(&self.name))
    }
}

#[farref::remote]
fn version() -> &'static str {
    "1"
}

#[farref::remote]
async fn numbers() -> impl Iterator<Item = u8> {
    0..3
}

#[farref::remote]
fn never() -> ! {
    panic!()
}

fn main() {}
