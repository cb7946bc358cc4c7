//! The Rust worker of a mixed group: it keeps vectors and searches them. `mixed_group.py`, beside this file, starts it.

use farref::{Peer, RRef, Worker};
use farref_autograd::{Tensor, candle};
use farref_pickle::{PyException, py_call};

/// Vectors, some rows at a time.
struct Index {
    dimensions: usize,
    vectors: Vec<candle::Tensor>,
}

#[farref::remote(python = "search.Index")]
impl Index {
    pub(crate) fn new(dimensions: usize) -> Self {
        let vectors = Vec::new();
        Self {
            dimensions,
            vectors,
        }
    }

    /// Takes the rows of a matrix. Returns how many there are now.
    pub(crate) fn add(&mut self, rows: Tensor) -> Result<usize, PyException> {
        match rows.dims2() {
            Ok((_, columns)) if columns == self.dimensions => {
                self.vectors.push(rows.into_candle());
                Ok(self.count())
            }
            _ => Err(PyException::new(
                "ValueError",
                format!("rows of {}, not {:?}", self.dimensions, rows.dims()),
            )),
        }
    }

    /// Which vector is most like this one, and how much each of them is.
    pub(crate) fn nearest(&self, vector: Tensor) -> Result<(u32, Tensor), PyException> {
        let wrong = |error: candle::Error| PyException::new("ValueError", error.to_string());
        let search = || {
            let all = candle::Tensor::cat(&self.vectors, 0)?;
            let likeness = all.matmul(&vector.unsqueeze(1)?)?.squeeze(1)?;
            let place = likeness.argmax(0)?.to_scalar()?;
            Ok((place, likeness.into()))
        };
        search().map_err(wrong)
    }
}

impl Index {
    fn count(&self) -> usize {
        self.vectors.iter().map(|rows| rows.dims()[0]).sum()
    }
}

/// Has Python workers make vectors, all at once, and puts them into an index, wherever that is.
#[farref::remote(python = "search.fill")]
async fn fill(index: RRef<Index>, makers: Vec<Peer>, batches: u32) -> farref::Result<usize> {
    let mut pending = Vec::new();
    for batch in 0..batches {
        let maker = &makers[batch as usize % makers.len()];
        pending.push(py_call::<Tensor>(maker, "__main__.vectors", (batch,)).start());
    }
    let mut count = 0;
    for rows in pending {
        count = index.add(rows.await?).await?;
    }
    Ok(count)
}

#[tokio::main]
async fn main() -> farref::Result<()> {
    Worker::from_env().join().await?.serve().await
}
