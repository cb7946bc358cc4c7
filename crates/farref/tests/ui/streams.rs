//! Both sides must know what flows, and what comes may fail on its way.

use farref::Stream;

#[farref::remote]
async fn take(_numbers: impl Stream<Item = u8>) {}

#[farref::remote]
fn anything() -> impl Stream {
    one()
}

#[farref::remote]
fn several() -> Vec<impl Stream<Item = u8>> {
    vec![one()]
}

struct Table {
    rows: Vec<u8>,
}

#[farref::remote]
impl Table {
    pub fn rows(&self) -> impl Stream<Item = u8> {
        Borrowed(&self.rows)
    }
}

struct Borrowed<'a>(&'a [u8]);

impl Stream for Borrowed<'_> {
    type Item = u8;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<u8>> {
        std::task::Poll::Ready(None)
    }
}

fn one() -> Borrowed<'static> {
    Borrowed(&[])
}

fn main() {}
