//! The process at the other end of a TCP connection within this host.
//!
//! A peer on the channel `cma` says itself which process's memory is to be read, over a connection that proves
//! nothing. Whoever is believed could have this worker read the memory of any process of its user's, and send it
//! back. So (TR-12) only the memory of a process is read that has the other end of the connection, and only if
//! that end was made by the same user.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use bytes::BufMut;
use farref_shm::ProcessMemory;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

use super::PipeError;
use crate::pipe::MemoryDescriptor;

/// The process at the other end of a connection.
#[derive(Debug)]
pub(super) struct PeerProcess {
    /// The system's number of the other end.
    socket: u64,
    /// Which process it is, once it has said so and that was found to be true.
    known: Option<(u32, ProcessMemory)>,
}

impl PeerProcess {
    /// Who is at the other end of a connection, if it is a process of this host and the same user. It must have
    /// taken the connection already: one that waits to be taken is nobody's.
    pub(super) async fn at_other_end(stream: &TcpStream) -> Option<Self> {
        let theirs = canonical(stream.peer_addr().ok()?);
        let ours = canonical(stream.local_addr().ok()?);
        // What comes from another address comes from another host, or another network.
        if theirs.ip() != ours.ip() {
            return None;
        }
        let found = spawn_blocking(move || {
            let user = fs::metadata("/proc/self").ok()?.uid();
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
            let mut tables = tables
                .into_iter()
                .filter_map(|it| fs::read_to_string(it).ok());
            tables.find_map(|table| find_socket(&table, theirs, ours, user))
        });
        Some(Self {
            socket: found.await.ok().flatten()?,
            known: None,
        })
    }

    /// Appends what the process has at a place in its memory.
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
                // Held before it is looked at: afterwards its number is no other's.
                let memory = ProcessMemory::open(place.pid).map_err(unreadable)?;
                if !has_socket(place.pid, self.socket) {
                    let claim = "it names a process that does not have its end of the connection";
                    return Err(PipeError::Rules(claim));
                }
                let (_, memory) = self.known.insert((place.pid, memory));
                memory
            }
        };
        memory.read(place.address, length, into).map_err(unreadable)
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

/// The number of the socket of `user`'s that is connected from `local` to `remote`, by the system's table.
fn find_socket(table: &str, local: SocketAddr, remote: SocketAddr, user: u32) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let its_local = read_address(fields.next()?)?;
        if its_local != local || read_address(fields.next()?)? != remote {
            return None;
        }
        // Its state, queues, timer and retries are between.
        let its_user = fields.nth(4)?.parse::<u32>().ok()?;
        let number = fields.nth(1)?.parse().ok()?;
        (its_user == user && number != 0).then_some(number)
    })
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
                let mut found = PeerProcess::at_other_end(end).await.expect("its process");
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
        let mut found = PeerProcess::at_other_end(&one).await.expect("its process");
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

    /// TR-12
    #[test]
    fn tr_12_a_connection_of_another_user_is_not_taken() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1000        0 777 1 0 20 4\n\
            \x20  1: 0100007F:0051 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4\n";
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(find_socket(table, at(8080), at(80), 1000), Some(777));
        assert_eq!(find_socket(table, at(8080), at(80), 0), None);
        assert_eq!(find_socket(table, at(80), at(8080), 1000), None);
        // Nobody has taken it.
        assert_eq!(find_socket(table, at(81), at(8080), 0), None);
        for broken in ["", "\n", "\nx", "\n 0: 0100007F:1F90", "\n 0: 01:1 02:2 3"] {
            assert_eq!(find_socket(broken, at(1), at(2), 0), None);
        }
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
