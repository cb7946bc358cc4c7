//! What one process tells another about its device memory: a ticket once, then a message for each allocation.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::driver::Opaque;
use crate::facts::DeviceUuid;
use crate::ledger::Loan;

/// The most anchors of a ticket.
pub(crate) const MAX_ANCHORS: usize = 16;

/// The longest allocation that is shared: a process that imports one of 6 GiB is crashed by the driver (580), and one of 5 GiB was fine, with and
/// without a reserve.
pub(crate) const MOST_BYTES: u64 = 4 << 30;

/// 64 bytes that mean something to the driver only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Token([u8; 32], [u8; 32]);

impl From<Opaque> for Token {
    fn from(bytes: Opaque) -> Self {
        let (mut first, mut second) = ([0; 32], [0; 32]);
        first.copy_from_slice(&bytes[..32]);
        second.copy_from_slice(&bytes[32..]);
        Self(first, second)
    }
}

impl From<Token> for Opaque {
    fn from(token: Token) -> Self {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&token.0);
        bytes[32..].copy_from_slice(&token.1);
        bytes
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What shows that somebody was given a ticket.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Secret(pub(crate) [u8; 32]);

impl Secret {
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        let mut have = 0;
        while have < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty())
            {
                Ok(read) => have += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(bytes))
    }

    /// Takes as long for a wrong one as for the right one.
    pub(crate) fn is(&self, said: &[u8]) -> bool {
        let differ = |sum: u8, (a, b): (&u8, &u8)| sum | (a ^ b);
        said.len() == self.0.len() && self.0.iter().zip(said).fold(0, differ) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which start of which host this is. Containers of a host have the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Host([u8; 16]);

impl Host {
    pub(crate) fn here() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let number = u128::from_str_radix(&digits, 16)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Self(number.to_be_bytes()))
    }

    #[cfg(test)]
    pub(crate) fn another(self) -> Self {
        Self(self.0.map(|byte| !byte))
    }
}

/// Lets another process of this host and user have a [`SharedPool`](crate::SharedPool)'s memory: it opens it with
/// [`ImportedPool::open`](crate::ImportedPool::open), once.
///
/// Whoever has it and is the same user can read and write what the pool exports, so it is for peers only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ticket {
    pub(crate) host: Host,
    /// The name of the socket, in the abstract namespace.
    pub(crate) socket: String,
    pub(crate) secret: Secret,
    pub(crate) pool: u64,
    pub(crate) uuid: DeviceUuid,
    /// Small allocations that importers keep, so that what is exported of the same physical memory is imported quickly.
    pub(crate) anchors: Vec<Token>,
}

impl Ticket {
    /// The GPU that the memory is on.
    pub fn uuid(&self) -> DeviceUuid {
        self.uuid
    }

    /// The pool's number among those of its process.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// Whether it is of the host that this process runs on, since its last start.
    pub fn is_of_this_host(&self) -> bool {
        Host::here().is_ok_and(|here| here == self.host)
    }
}

/// What is sent for one allocation, to whoever has the pool's [`Ticket`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ExportMessage {
    pub(crate) pool: u64,
    pub(crate) bytes: u64,
    pub(crate) token: Token,
    pub(crate) loan: Loan,
}

impl ExportMessage {
    /// The number of the pool, among those of its process.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// How many bytes it says that there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
