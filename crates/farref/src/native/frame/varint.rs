//! Numbers and ids as postcard writes them, one after the other, by hand.

use farref_proto::{Carried, Fingerprint, ForkId, NodeId, RRefId, Share};

/// No number takes more bytes.
pub(super) const LONGEST: usize = 10;
/// None of 32 bits.
const LONGEST_SHORT: usize = 5;

pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, at: 0 }
    }

    /// How much has been written.
    pub(super) fn len(&self) -> usize {
        self.at
    }

    pub(super) fn byte(&mut self, byte: u8) -> Option<()> {
        *self.buffer.get_mut(self.at)? = byte;
        self.at += 1;
        Some(())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        self.buffer.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    /// Seven bits a byte, the lowest first.
    #[inline(always)]
    pub(super) fn number(&mut self, number: u64) -> Option<()> {
        if number < 0x80 {
            return self.byte(number as u8);
        }
        self.long_number(number)
    }

    /// One of several bytes.
    #[inline(never)]
    fn long_number(&mut self, mut number: u64) -> Option<()> {
        // As much as the longest may take, so that it is looked for once. Who has less left has it written by
        // postcard.
        let room = self
            .buffer
            .get_mut(self.at..)?
            .first_chunk_mut::<LONGEST>()?;
        for (length, byte) in (1..).zip(room) {
            if number < 0x80 {
                *byte = number as u8;
                self.at += length;
                return Some(());
            }
            *byte = number as u8 | 0x80;
            number >>= 7;
        }
        None
    }

    pub(super) fn node(&mut self, node: NodeId) -> Option<()> {
        self.number(node.worker.0.into())?;
        self.number(node.incarnation.0.into())
    }

    #[inline(never)]
    pub(super) fn rref(&mut self, rref: RRefId) -> Option<()> {
        self.node(rref.origin)?;
        self.number(rref.counter)
    }

    #[inline(never)]
    pub(super) fn share(&mut self, share: &Share) -> Option<()> {
        self.rref(share.rref)?;
        self.node(share.fork.origin)?;
        self.number(share.fork.counter)
    }

    #[inline(never)]
    pub(super) fn carried(&mut self, carried: &Carried) -> Option<()> {
        self.share(&carried.share)?;
        self.node(carried.owner)?;
        self.number(carried.fingerprint.0)
    }
}

pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn expect(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    pub(super) fn boolean(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        if *first < 0x80 {
            self.0 = rest;
            return Some(u64::from(*first));
        }
        self.long_number()
    }

    /// One of several bytes.
    #[inline(never)]
    fn long_number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        let mut number = u64::from(*first & 0x7f);
        let mut shift = 7;
        for (at, byte) in (1..).zip(rest.iter().take(LONGEST - 1)) {
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                // The last of the longest has one bit left.
                let is_fine = shift < 63 || *byte <= 1;
                self.0 = rest.get(at..)?;
                return is_fine.then_some(number);
            }
            shift += 7;
        }
        None
    }

    /// One of 32 bits. Written with more bytes than such a number has it is for postcard to refuse.
    pub(super) fn short(&mut self) -> Option<u32> {
        let length = self.0.len();
        let number = u32::try_from(self.number()?).ok()?;
        (length - self.0.len() <= LONGEST_SHORT).then_some(number)
    }

    pub(super) fn node(&mut self) -> Option<NodeId> {
        Some(NodeId::new(self.short()?, self.short()?))
    }

    #[inline(never)]
    pub(super) fn rref(&mut self) -> Option<RRefId> {
        Some(RRefId::new(self.node()?, self.number()?))
    }

    #[inline(never)]
    pub(super) fn share(&mut self) -> Option<Share> {
        Some(Share {
            rref: self.rref()?,
            fork: ForkId::new(self.node()?, self.number()?),
        })
    }

    #[inline(never)]
    pub(super) fn carried(&mut self) -> Option<Carried> {
        Some(Carried {
            share: self.share()?,
            owner: self.node()?,
            fingerprint: Fingerprint(self.number()?),
        })
    }
}
