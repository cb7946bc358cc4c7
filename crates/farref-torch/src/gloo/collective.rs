//! What all ranks do together: each hears from all, or waits for all.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::error::GlooError;
use super::message::{ALL_GATHER, BARRIER, slot};
use super::pair::Pair;

/// The longest object that a rank may contribute.
const MAX_OBJECT: usize = 1 << 20;
/// How long the others have to hang up, too.
const GOODBYE: Duration = Duration::from_secs(2);

/// A rank of a group whose members are all connected.
///
/// All ranks have to do the same things in the same order: it is by counting that they know which message
/// belongs to what.
#[derive(Debug)]
pub(crate) struct Gloo {
    rank: usize,
    /// By rank; there is none with oneself.
    pub(super) pairs: Vec<Option<Pair>>,
    tag: u32,
}

impl Gloo {
    pub(super) fn new(rank: u16, pairs: Vec<Option<Pair>>) -> Self {
        Self {
            rank: rank.into(),
            pairs,
            tag: 0,
        }
    }

    fn world(&self) -> usize {
        self.pairs.len()
    }

    /// The object of each rank, by rank. PyTorch's `all_gather_object` does the same: the sizes first, then
    /// the objects, with something behind the shorter ones.
    pub(crate) async fn all_gather_objects(
        &mut self,
        object: &[u8],
        patience: Duration,
    ) -> Result<Vec<Bytes>, GlooError> {
        let size = (object.len() as i64).to_le_bytes();
        let sizes = self.all_gather(&size, patience).await?;
        let mut lengths = Vec::with_capacity(sizes.len());
        for (rank, size) in sizes.iter().enumerate() {
            let size = size.first_chunk().map(|size| i64::from_le_bytes(*size));
            let length = size.and_then(|size| usize::try_from(size).ok());
            match length {
                Some(length) if length <= MAX_OBJECT => lengths.push(length),
                _ => {
                    return Err(GlooError::Misbehaved {
                        rank: rank as u16,
                        reason: format!(
                            "its object has {} bytes, and {MAX_OBJECT} are allowed",
                            size.unwrap_or_default()
                        ),
                    });
                }
            }
        }
        let mut padded = object.to_vec();
        padded.resize(lengths.iter().copied().max().unwrap_or(0), 0);
        let mut objects = self.all_gather(&padded, patience).await?;
        for (object, length) in objects.iter_mut().zip(lengths) {
            object.truncate(length);
        }
        Ok(objects)
    }

    /// The block of each rank, by rank. All blocks are as long as this one.
    ///
    /// They go round in a ring: each rank passes on what it heard from the one before it, in halves, and
    /// never has more than two halves under way.
    pub(crate) async fn all_gather(
        &mut self,
        block: &[u8],
        patience: Duration,
    ) -> Result<Vec<Bytes>, GlooError> {
        let slot = self.next(ALL_GATHER);
        let work = self.pass_round(slot, block);
        match timeout(patience, work).await {
            Ok(done) => done,
            Err(_) => Err(self.late("an all-gather", patience)),
        }
    }

    async fn pass_round(&mut self, slot: u64, block: &[u8]) -> Result<Vec<Bytes>, GlooError> {
        let (world, rank) = (self.world(), self.rank);
        let cut = block.len() / 2;
        let sizes = [cut, block.len() - cut];
        let mut halves = vec![[Bytes::new(), Bytes::new()]; world];
        if let Some(own) = halves.get_mut(rank) {
            let (first, second) = block.split_at(cut);
            *own = [first, second].map(Bytes::copy_from_slice);
        }
        if !block.is_empty() && world > 1 {
            let (from, to) = ((rank + world - 1) % world, (rank + 1) % world);
            let steps = 2 * (world - 1);
            let mut arrived = 0;
            for step in 0..=steps {
                // Two may be under way; at the end, none.
                let last = step == steps;
                if step >= 2 {
                    let open = if last { 0 } else { 1 };
                    self.settle(from, to, slot, open).await?;
                    while let Some(half) = self.arrived(from, slot) {
                        let segment = (rank + 2 * world - 1 - arrived / 2) % world;
                        if let Some(halves) = halves.get_mut(segment) {
                            halves[arrived % 2] = half;
                        }
                        arrived += 1;
                    }
                }
                if last {
                    break;
                }
                let segment = (rank + world - step / 2) % world;
                let half = halves.get(segment).map(|halves| halves[step % 2].clone());
                self.send(to, slot, half.unwrap_or_default());
                self.receive(from, slot, sizes[step % 2]);
            }
        }
        let whole = |[first, second]: [Bytes; 2]| Bytes::from([first, second].concat());
        Ok(halves.into_iter().map(whole).collect())
    }

    /// Returns when all ranks have come here.
    ///
    /// In the first round each rank tells the next one, then the one after that, then the fourth, and so on:
    /// whoever is told knows of twice as many each time.
    pub(crate) async fn barrier(&mut self, patience: Duration) -> Result<(), GlooError> {
        let slot = self.next(BARRIER);
        let work = async {
            let (world, rank) = (self.world(), self.rank);
            let mut distance = 1;
            while distance < world {
                let (from, to) = ((rank + world - distance) % world, (rank + distance) % world);
                self.receive(from, slot, 0);
                self.send(to, slot, Bytes::new());
                self.settle(from, to, slot, 0).await?;
                self.arrived(from, slot);
                distance *= 2;
            }
            Ok(())
        };
        match timeout(patience, work).await {
            Ok(done) => done,
            Err(_) => Err(self.late("a barrier", patience)),
        }
    }

    /// Hangs up. What was sent has been sent; what others still have to say is not waited for for long.
    pub(crate) async fn close(self) {
        let mut goodbyes = tokio::task::JoinSet::new();
        for pair in self.pairs.into_iter().flatten() {
            goodbyes.spawn(pair.close());
        }
        let all = async { while goodbyes.join_next().await.is_some() {} };
        let _ = timeout(GOODBYE, all).await;
    }

    fn next(&mut self, kind: u8) -> u64 {
        let slot = slot(kind, self.tag);
        self.tag = self.tag.wrapping_add(1);
        slot
    }

    fn pair(&mut self, rank: usize) -> Option<&mut Pair> {
        self.pairs.get_mut(rank)?.as_mut()
    }

    fn send(&mut self, to: usize, slot: u64, body: Bytes) {
        if let Some(pair) = self.pair(to) {
            pair.state.send(slot, body);
        }
    }

    fn receive(&mut self, from: usize, slot: u64, length: usize) {
        if let Some(pair) = self.pair(from) {
            pair.state.receive(slot, length);
        }
    }

    fn arrived(&mut self, from: usize, slot: u64) -> Option<Bytes> {
        self.pair(from)?.state.arrived(slot)
    }

    /// Moves bytes both ways until at most `open` sends and as many receives are not done.
    async fn settle(
        &mut self,
        from: usize,
        to: usize,
        slot: u64,
        open: usize,
    ) -> Result<(), GlooError> {
        let done = |pair: &Pair| {
            let state = &pair.state;
            state.open(slot) <= open && state.outgoing().is_empty()
        };
        loop {
            // A peer that is done with may hang up, and is not listened to.
            match self.pairs.get_disjoint_mut([from, to]) {
                Ok([Some(left), Some(right)]) => {
                    let (left_done, right_done) = (done(left), done(right));
                    tokio::select! {
                        moved = left.step(), if !left_done => moved?,
                        moved = right.step(), if !right_done => moved?,
                        else => return Ok(()),
                    }
                }
                // There are only two ranks.
                _ => match self.pair(from) {
                    Some(pair) if !done(pair) => pair.step().await?,
                    _ => return Ok(()),
                },
            }
        }
    }

    fn late(&self, doing: &'static str, waited: Duration) -> GlooError {
        let pairs = self.pairs.iter().flatten();
        let late = pairs.filter(|pair| pair.state.is_open());
        GlooError::TimedOut {
            doing,
            ranks: late.map(|pair| pair.peer).collect(),
            waited,
        }
    }
}
