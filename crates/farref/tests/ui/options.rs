//! Options are checked, and answered with what to write instead.

#[farref::remote(timout = "5s")]
fn misspelled() {}

#[farref::remote(retries = 3)]
fn unknown() {}

#[farref::remote(timeout = "5s", timeout = "6s")]
fn repeated() {}

#[farref::remote(blocking, task)]
fn contradiction() {}

#[farref::remote(timeout)]
fn no_value() {}

#[farref::remote(timeout = 5)]
fn no_text() {}

#[farref::remote(task = true)]
fn needless_value() {}

#[farref::remote(timeout = "5 seconds")]
fn no_unit() {}

#[farref::remote(timeout = "0s")]
fn no_time() {}

#[farref::remote(name = "")]
fn no_name() {}

#[farref::remote(blocking)]
async fn not_blocking() {}

#[farref::remote(skip)]
fn skipped() {}

#[farref::remote(trait = Functions)]
fn no_methods() {}

#[farref::remote(python = "alone")]
fn no_module() {}

#[farref::remote(python = "a module.function")]
fn no_python_name() {}

#[farref::remote(python)]
fn no_python_value() {}

struct Table;

#[farref::remote(python = "tables::Table")]
impl Table {
    pub fn get(&self) {}
}

#[farref::remote(python = "tables.Table", trait = More)]
impl Table {
    #[remote(pyton = "tables.Table.put")]
    pub fn put(&self) {}
}

fn main() {}
