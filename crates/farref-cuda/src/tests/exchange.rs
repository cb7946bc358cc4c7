//! Who is given a pool's descriptor (CU-5), over real sockets.

use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use farref_testkit::TEST_TIMEOUT;

use super::{open, pool, until};
use crate::testing::Machine;
use crate::ticket::Secret;
use crate::{CudaError, ImportedPool, Ticket};

fn connect(ticket: &Ticket) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&ticket.socket)?)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    Ok(stream)
}

/// Everything that somebody is told until the other end hangs up.
fn told(mut stream: &UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => all,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => all,
        Err(error) => panic!("nobody hung up: {error}"),
    }
}

fn request(ticket: &Ticket) -> Vec<u8> {
    let mut request = ticket.secret.0.to_vec();
    request.extend(ticket.pool.to_le_bytes());
    request
}

#[test]
fn a_pool_is_given_only_to_those_who_know_the_secret_and_its_number() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let pool = pool(&here);
        let right = pool.ticket();
        let mut almost = right.secret;
        almost.0[31] ^= 1;
        for wrong in [
            Ticket {
                secret: almost,
                ..right.clone()
            },
            Ticket {
                secret: Secret([0; 32]),
                ..right.clone()
            },
            Ticket {
                pool: right.pool + 1,
                ..right.clone()
            },
            Ticket {
                pool: 0,
                ..right.clone()
            },
        ] {
            let refused = ImportedPool::open(there.cuda(), &wrong);
            assert!(matches!(refused, Err(CudaError::Refused)), "{refused:?}");
            let stream = connect(&right).unwrap();
            (&stream).write_all(&request(&wrong)).unwrap();
            assert_eq!(told(&stream), b"");
        }
        assert!(ImportedPool::open(there.cuda(), &right).is_ok());
    });
}

#[test]
fn a_request_may_come_in_pieces() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pool(&here);
        let ticket = pool.ticket();
        let stream = connect(&ticket).unwrap();
        for piece in request(&ticket).chunks(7) {
            (&stream).write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        // And the number of its line in the ledger.
        assert_eq!(told(&stream), b"!\0\0");
    });
}

#[test]
fn those_who_say_nothing_are_hung_up_on_and_keep_nobody_waiting_for_long() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let pool = pool(&here);
        let ticket = pool.ticket();
        let silent: Vec<_> = (0..20).map(|_| connect(&ticket).unwrap()).collect();
        // One of them says a part of it.
        (&silent[0]).write_all(&ticket.secret.0).unwrap();
        drop(open(&there, &pool));
        for stream in &silent {
            assert_eq!(told(stream), b"");
        }
        drop(open(&there, &pool));
    });
}

#[test]
fn the_socket_goes_with_the_last_pool() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let (first, second) = (pool(&here), pool(&here));
        let (one, two) = (first.ticket(), second.ticket());
        assert_eq!(one.socket, two.socket);
        drop(first);
        let gone = ImportedPool::open(there.cuda(), &one);
        assert!(matches!(gone, Err(CudaError::Refused)), "{gone:?}");
        assert!(ImportedPool::open(there.cuda(), &two).is_ok());
        drop(second);
        // The thread closes it as soon as it hears of that.
        until(|| connect(&two).is_err());
        let gone = ImportedPool::open(there.cuda(), &two);
        assert!(matches!(gone, Err(CudaError::Unreachable(_))), "{gone:?}");
        // Another one has a socket of its own.
        let third = pool(&here);
        assert_ne!(third.ticket().socket, two.socket);
        drop(open(&there, &third));
    });
}

#[test]
fn impossible_sockets_are_wrong_tickets() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pool(&here);
        let ticket = Ticket {
            socket: "x".repeat(1000),
            ..pool.ticket()
        };
        let refused = ImportedPool::open(here.cuda(), &ticket).unwrap_err();
        assert!(refused.is_peers_fault(), "{refused:?}");
    });
}

#[test]
fn a_secret_is_not_shown() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let ticket = pool(&here).ticket();
        let shown = format!("{ticket:?}");
        assert!(shown.contains("Secret(..)"), "{shown}");
        assert!(
            !shown.contains(&format!("{:?}", ticket.secret.0)),
            "{shown}"
        );
    });
}
