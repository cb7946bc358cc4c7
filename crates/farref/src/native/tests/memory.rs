//! The network within the process: that its faults are the faults of networks.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::time::Duration;

use tokio::sync::Mutex;

use super::*;
use crate::native::transport::{PipeReader, PipeWriter};

type End = (Mutex<PipeReader>, PipeWriter);

async fn pair(network: &MemoryNetwork) -> (End, End) {
    let mut listener = network.bind("b").expect("a free name");
    let near = network.connect("a", "b").await.expect("a connection");
    let end = |(read, write)| (Mutex::new(read), write);
    (end(near), end(listener.accept().await))
}

fn write(end: &End, bytes: &[u8]) -> io::Result<usize> {
    end.1.try_write_vectored(&[IoSlice::new(bytes)])
}

async fn read(end: &End) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::with_capacity(1 << 20);
    let mut reader = end.0.lock().await;
    poll_fn(|context| reader.poll_read_buf(context, &mut buffer)).await?;
    Ok(buffer)
}

#[tokio::test]
async fn a_full_pipe_holds_the_writer_back() {
    let network = MemoryNetwork::new();
    network.set_capacity(10);
    let (near, far) = pair(&network).await;
    assert_eq!(write(&near, b"0123456").expect("room"), 7);
    assert_eq!(write(&near, b"789ab").expect("some room"), 3);
    let full = write(&near, b"ab").expect_err("full");
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    assert_eq!(read(&far).await.expect("bytes"), b"0123456789");
    near.1.writable().await.expect("room again");
    assert_eq!(write(&near, b"ab").expect("room"), 2);
}

#[tokio::test]
async fn the_end_of_a_stream_comes_after_its_bytes() {
    let network = MemoryNetwork::new();
    let (near, far) = pair(&network).await;
    write(&near, b"last").expect("room");
    drop(near);
    assert_eq!(read(&far).await.expect("bytes"), b"last");
    assert_eq!(read(&far).await.expect("the end"), b"");
    let broken = write(&far, b"x").expect_err("nobody reads");
    assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_cut_breaks_both_ways_and_loses_what_is_under_way() {
    let network = MemoryNetwork::new();
    let (near, far) = pair(&network).await;
    write(&near, b"lost").expect("room");
    assert_eq!(network.cut("b", "a"), 1);
    for end in [&near, &far] {
        let reset = read(end).await.expect_err("broken");
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
        assert!(write(end, b"x").is_err());
    }
    assert_eq!(network.connections("a", "b"), 0);
}

#[tokio::test]
async fn a_fuse_lets_so_many_bytes_pass_and_no_more() {
    let network = MemoryNetwork::new();
    let (near, far) = pair(&network).await;
    network.cut_after("a", "b", 6);
    assert_eq!(write(&near, b"abcd").expect("room"), 4);
    assert_eq!(write(&near, b"efgh").expect("room for two"), 2);
    assert!(write(&near, b"gh").is_err());
    assert_eq!(read(&far).await.expect("bytes"), b"abcdef");
    assert!(read(&far).await.is_err());
}

#[tokio::test]
async fn a_partition_loses_nothing_and_makes_connections_hang() {
    let network = MemoryNetwork::new();
    let (near, far) = pair(&network).await;
    network.partition("a", "b");
    write(&near, b"later").expect("room");
    let moment = Duration::from_millis(20);
    assert!(timeout(moment, read(&far)).await.is_err());
    assert!(timeout(moment, network.connect("a", "b")).await.is_err());
    let reading = tokio::spawn(async move { read(&far).await });
    tokio::time::sleep(moment).await;
    network.heal("a", "b");
    let bytes = reading.await.expect("no panic").expect("bytes");
    assert_eq!(bytes, b"later");
}

#[tokio::test]
async fn the_end_of_a_stream_is_heard_of_when_a_partition_heals() {
    let network = MemoryNetwork::new();
    let (near, far) = pair(&network).await;
    network.partition("a", "b");
    write(&near, b"last").expect("room");
    drop(near);
    assert!(
        timeout(Duration::from_millis(20), read(&far))
            .await
            .is_err()
    );
    network.heal("a", "b");
    assert_eq!(read(&far).await.expect("bytes"), b"last");
    assert_eq!(read(&far).await.expect("the end"), b"");
}

#[tokio::test]
async fn a_crash_refuses_connections_until_the_name_is_bound_again() {
    let network = MemoryNetwork::new();
    let refused =
        |result: io::Result<(PipeReader, PipeWriter)>| result.err().map(|error| error.kind());
    let nobody = refused(network.connect("a", "b").await);
    assert_eq!(nobody, Some(io::ErrorKind::ConnectionRefused));
    let (near, _far) = pair(&network).await;
    network.crash("b");
    assert!(read(&near).await.is_err());
    let crashed = refused(network.connect("a", "b").await);
    assert_eq!(crashed, Some(io::ErrorKind::ConnectionRefused));
    let _listener = network.bind("b").expect("the name is free");
    assert!(network.bind("b").is_err(), "and taken");
    assert!(network.connect("a", "b").await.is_ok());
}

#[tokio::test]
async fn latency_delays_and_keeps_the_order() {
    let network = MemoryNetwork::new();
    network.set_latency("a", "b", Duration::from_millis(30));
    let (near, far) = pair(&network).await;
    let sent = Instant::now();
    write(&near, b"first").expect("room");
    network.set_latency("a", "b", Duration::ZERO);
    write(&near, b"second").expect("room");
    assert_eq!(read(&far).await.expect("bytes"), b"firstsecond");
    assert!(sent.elapsed() >= Duration::from_millis(30));
}
