//! The process at the other end of a TCP connection within this host.
//!
//! A peer on the channel `cma` says itself which process's memory is to be read, over a connection that proves
//! nothing. Whoever is believed could have this worker read the memory of any process of its user's, and send it
//! back. So (TR-12) only the memory of a process is read that has the other end of the connection on which it says so, and
//! only if that end was made by the same user.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::BufMut;
use farref_shm::ProcessMemory;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

use super::PipeError;
use crate::pipe::MemoryDescriptor;

/// The system's tables of connections.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The process at the other end of a connection.
#[derive(Debug)]
pub(super) struct PeerProcess {
    ends: Ends,
    /// Which process it is, once it has said so and that was found to be true.
    known: Option<(u32, ProcessMemory)>,
}

/// The addresses of a connection, the peer's first.
type Ends = (SocketAddr, SocketAddr);

impl PeerProcess {
    /// Whether what this relies on can be seen here.
    pub(super) fn can_be_known() -> bool {
        fs::metadata(TABLES[0]).is_ok() && fs::read_dir("/proc/self/fd").is_ok()
    }

    /// Whether the other end of a connection is on this host, and was made by the same user. The peer must have taken the
    /// connection already: one that waits to be taken is nobody's.
    pub(super) async fn is_same_user(stream: &TcpStream) -> bool {
        let Some(ends) = ends(stream) else {
            return false;
        };
        let asked = Instant::now();
        let found = spawn_blocking(move || find_socket(ends, asked));
        found.await.ok().flatten().is_some()
    }

    /// The one at the other end of a connection, which is looked at when it first says who it is.
    pub(super) fn behind(stream: &TcpStream) -> Option<Self> {
        let (ends, known) = (ends(stream)?, None);
        Some(Self { ends, known })
    }

    /// Whether it has said who it is.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Appends what the process has at a place in its memory. May take long: to find out who it is, and if the system has
    /// to get its memory from somewhere.
    pub(super) fn read(
        &mut self,
        place: MemoryDescriptor,
        length: usize,
        into: &mut impl BufMut,
    ) -> Result<(), PipeError> {
        let memory = match &self.known {
            Some((pid, memory)) if *pid == place.pid => memory,
            Some(_) => return Err(PipeError::Rules("it was another process before")),
            None => {
                let claim = "it names a process that does not have its end of the connection";
                let socket = find_socket(self.ends, Instant::now());
                // Held before it is looked at: afterwards its number is no other's.
                let memory = ProcessMemory::open(place.pid).map_err(unreadable)?;
                if !socket.is_some_and(|socket| has_socket(place.pid, socket)) {
                    return Err(PipeError::Rules(claim));
                }
                let (_, memory) = self.known.insert((place.pid, memory));
                memory
            }
        };
        memory.read(place.address, length, into).map_err(unreadable)
    }

    /// Whether the peer has not given up meanwhile, which it may do while its process goes on: what was read counts then.
    pub(super) fn is_connected(stream: &TcpStream) -> bool {
        farref_shm::is_connected(stream)
    }
}

/// None if what is at the other end is on another host, or in another network.
fn ends(stream: &TcpStream) -> Option<Ends> {
    let theirs = canonical(stream.peer_addr().ok()?);
    let ours = canonical(stream.local_addr().ok()?);
    (theirs.ip() == ours.ip()).then_some((theirs, ours))
}

/// The number of the socket at the other end of a connection, if the same user made it.
fn find_socket(ends: Ends, asked: Instant) -> Option<u64> {
    let user = fs::metadata("/proc/self").ok()?.uid();
    let table = Table::since(asked);
    let (owner, socket) = table.sockets.get(&ends)?;
    (*owner == user).then_some(*socket)
}

/// The connections of this host.
struct Table {
    /// When it was begun to be read.
    began: Instant,
    /// Who has each end, and its number.
    sockets: HashMap<Ends, (u32, u64)>,
}

impl Table {
    /// One that was read since then. Those who ask at the same time share one: the system takes long to make it, where
    /// there are many connections.
    fn since(asked: Instant) -> Arc<Self> {
        static LAST: Mutex<Option<Arc<Table>>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = &*last
            && table.began > asked
        {
            return Arc::clone(table);
        }
        let began = Instant::now();
        let tables = TABLES.iter().filter_map(|it| fs::read_to_string(it).ok());
        let mut sockets = HashMap::new();
        for table in tables {
            sockets.extend(table.lines().skip(1).filter_map(read_line));
        }
        let table = Arc::new(Self { began, sockets });
        *last = Some(Arc::clone(&table));
        table
    }
}

fn unreadable(error: farref_shm::PeerError) -> PipeError {
    PipeError::Broken {
        doing: "while a tensor was read out of the peer's memory",
        error: std::io::Error::other(error),
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A line of a table of connections: both ends, whose the first is, and its number, if somebody has it.
fn read_line(line: &str) -> Option<(Ends, (u32, u64))> {
    let mut fields = line.split_whitespace().skip(1);
    let ends = (read_address(fields.next()?)?, read_address(fields.next()?)?);
    // Its state, queues, timer and retries are between.
    let user = fields.nth(4)?.parse().ok()?;
    let number = fields.nth(1)?.parse().ok()?;
    (number != 0).then_some((ends, (user, number)))
}

/// An address as the system writes it: words of four bytes in its own order.
fn read_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| {
        let digits = ip.get(8 * index..8 * index + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (index, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(index)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Whether a process has a socket open.
fn has_socket(pid: u32, socket: u64) -> bool {
    let expected = format!("socket:[{socket}]");
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    open.filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .any(|target| target.as_os_str() == expected.as_str())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use tokio::net::TcpListener;

    use super::*;

    async fn connected(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let ends = tokio::join!(TcpStream::connect(address), listener.accept());
        (ends.0.expect("connected"), ends.1.expect("connected").0)
    }

    #[tokio::test]
    async fn the_other_end_of_a_connection_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            if std::net::TcpListener::bind(address).is_err() {
                continue; // a system without IPv6
            }
            let (one, other) = connected(address).await;
            for end in [&one, &other] {
                assert!(PeerProcess::is_same_user(end).await);
                let mut found = PeerProcess::behind(end).expect("its process");
                let value = b"a value";
                let place = MemoryDescriptor {
                    pid: std::process::id(),
                    address: value.as_ptr().addr() as u64,
                };
                let mut copy = Vec::new();
                found.read(place, value.len(), &mut copy).expect("readable");
                assert_eq!(copy, value);
            }
        }
    }

    /// TR-12: though it could be, being the same user's.
    #[tokio::test]
    async fn tr_12_no_process_is_read_that_has_not_the_other_end() {
        let (one, _other) = connected("127.0.0.1:0").await;
        let mut found = PeerProcess::behind(&one).expect("its process");
        let stranger = Command::new("cat").stdin(Stdio::piped()).spawn();
        let mut stranger = stranger.expect("a process");
        let place = |pid| MemoryDescriptor { pid, address: 4096 };
        let read = found.read(place(stranger.id()), 1, &mut Vec::new());
        assert!(matches!(read, Err(PipeError::Rules(_))), "{read:?}");
        // Nor is it after the right one.
        let value = b"a value";
        let right = MemoryDescriptor {
            pid: std::process::id(),
            address: value.as_ptr().addr() as u64,
        };
        found
            .read(right, value.len(), &mut Vec::new())
            .expect("readable");
        let read = found.read(place(stranger.id()), 1, &mut Vec::new());
        assert!(matches!(read, Err(PipeError::Rules(_))), "{read:?}");
        drop(stranger.stdin.take());
        stranger.wait().expect("it ends");
    }

    /// TR-12: whose an end is shows in the table, unless nobody has taken it.
    #[test]
    fn tr_12_the_table_says_whose_an_end_is() {
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let taken = "0: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1000 0 777 1 0 20";
        assert_eq!(read_line(taken), Some(((at(8080), at(80)), (1000, 777))));
        let waiting =
            "1: 0100007F:0051 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 0 1 0 20";
        assert_eq!(read_line(waiting), None);
        for broken in ["", "x", "0: 0100007F:1F90", "0: 01:1 02:2 3"] {
            assert_eq!(read_line(broken), None);
        }
    }

    #[tokio::test]
    async fn a_peer_that_has_given_up_is_not_connected() {
        let (one, other) = connected("127.0.0.1:0").await;
        assert!(PeerProcess::is_connected(&one));
        other.try_write(b"unread").expect("written");
        drop(other.into_split().1);
        assert!(!PeerProcess::is_connected(&one));
    }

    #[test]
    fn addresses_are_read_as_the_system_writes_them() {
        let read = |text| read_address(text).map(|address| address.to_string());
        assert_eq!(read("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        let mapped = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(read(mapped).as_deref(), Some("127.0.0.1:80"));
        let six = "00000000000000000000000001000000:0050";
        assert_eq!(read(six).as_deref(), Some("[::1]:80"));
        for text in [
            "",
            ":",
            "0100007F",
            "0100007:50",
            "0100007F:",
            "zzzzzzzz:0050",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
