//! What a value costs from one process to another: over a Unix socket, out of the sender's memory, and in a region.
//!
//! Each way is taken once in each round, after each other, and compared with a copy within the process in the same round: so
//! whatever else the machine does is in all of them. What is said is the least time of each, as bytes a second of
//! the copy. A value has arrived when the receiver has touched each page of it.
//!
//! ```sh
//! cargo run --example measure -p farref-shm -- 64    # MiB; nothing says all sizes
//! ```

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("only Linux has what this measures");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::hint::black_box;
    use std::io::{IoSlice, Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;
    use std::time::{Duration, Instant};

    use farref_shm::{
        BEACON, Beacon, DescriptorQueue, MappedRegions, PeerMemory, Quota, Region, RegionWriter,
        receive, send,
    };

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    const ROLE: &str = "FARREF_SHM_MEASURE";
    const MIB: usize = 1 << 20;
    const MOST: usize = 256 * MIB;

    /// How a value goes, and what that is called.
    const WAYS: [(u8, &str); 6] = [
        (b's', "Unix socket"),
        (b'm', "out of the sender's memory"),
        (b'2', "the same, by two threads"),
        (b'f', "a fresh region, mapped"),
        (b'k', "a kept region, mapped"),
        (b'r', "a kept region, mapped before"),
    ];

    pub(super) fn main() -> Result<()> {
        if let Some(name) = std::env::var_os(ROLE) {
            use std::os::unix::ffi::OsStrExt as _;
            let address = SocketAddr::from_abstract_name(name.as_bytes())?;
            return receiver(UnixStream::connect_addr(&address)?);
        }
        let name = format!("farref-shm-measure-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, &name)
            .spawn()?;
        let sizes = match std::env::args().nth(1) {
            Some(mebibytes) => vec![mebibytes.parse::<usize>()? * MIB],
            None => (16..=28).step_by(2).map(|log| 1 << log).collect(),
        };
        let measured = sender(listener.accept()?.0, &sizes);
        child.wait()?;
        measured
    }

    fn sender(mut socket: UnixStream, sizes: &[usize]) -> Result<()> {
        let most = sizes.iter().copied().max().unwrap_or(0).min(MOST);
        let value = vec![7_u8; most];
        let mut warm = vec![1_u8; most];
        let beacon = Beacon::new([9; BEACON]);
        socket.write_all(&beacon.address().to_le_bytes())?;
        socket.write_all(&(value.as_ptr().addr() as u64).to_le_bytes())?;
        for &size in sizes.iter().filter(|size| **size <= most) {
            let value = &value[..size];
            let rounds = (64 * MIB / size).clamp(1, 50) * 10;
            let kept = region(value)?;
            let mut copy = Duration::MAX;
            let mut least = [Duration::MAX; WAYS.len()];
            for _ in 0..rounds {
                let start = Instant::now();
                warm[..size].copy_from_slice(value);
                black_box(touch(&warm[..size]));
                copy = copy.min(start.elapsed());
                for (least, (way, _)) in least.iter_mut().zip(WAYS) {
                    let start = Instant::now();
                    offer(&mut socket, way, value, &kept)?;
                    socket.read_exact(&mut [0])?;
                    *least = (*least).min(start.elapsed());
                }
            }
            println!("{:>7} KiB  copied in {copy:?}", size >> 10);
            for (least, (_, name)) in least.iter().zip(WAYS) {
                let ratio = copy.as_secs_f64() / least.as_secs_f64();
                println!("             {ratio:>7.2} x  {name} ({least:?})");
            }
        }
        Ok(())
    }

    fn offer(socket: &mut UnixStream, way: u8, value: &[u8], kept: &Region) -> Result<()> {
        let mut head = [way; 9];
        head[1..].copy_from_slice(&(value.len() as u64).to_le_bytes());
        let head = [IoSlice::new(&head)];
        match way {
            b's' => {
                send(&*socket, &head, &[])?;
                socket.write_all(value)?;
            }
            b'f' => {
                let fresh = region(value)?;
                send(&*socket, &head, &[fresh.descriptor()])?;
            }
            b'k' | b'r' => {
                send(&*socket, &head, &[kept.descriptor()])?;
            }
            _ => {
                send(&*socket, &head, &[])?;
            }
        }
        Ok(())
    }

    fn receiver(mut socket: UnixStream) -> Result<()> {
        let mut buffer = vec![1_u8; MOST];
        let beacon = read_number(&mut socket)?;
        let value = read_number(&mut socket)?;
        let memory = PeerMemory::confirm(&socket, beacon, &[9; BEACON])?;
        let table = MappedRegions::new(Quota::new(8, 1 << 40));
        let mut queue = DescriptorQueue::new(1);
        let mut held = None;
        loop {
            let mut head = [0; 9];
            match receive(&socket, &mut head, &mut queue)? {
                9 => {}
                0 => return Ok(()),
                _ => return Err("half a head".into()),
            }
            let [way, length @ ..] = head;
            let length = usize::try_from(u64::from_le_bytes(length))?;
            let into = &mut buffer[..length];
            match way {
                b's' => {
                    socket.read_exact(into)?;
                    black_box(touch(into));
                }
                b'm' => {
                    memory.read(&socket, value, length, &mut &mut *into)?;
                    black_box(touch(into));
                }
                b'2' => {
                    let (mut front, mut back) = into.split_at_mut(length / 2);
                    let (half, rest) = (front.len(), back.len());
                    std::thread::scope(|scope| {
                        let other = scope.spawn(|| memory.read(&socket, value, half, &mut front));
                        memory.read(&socket, value + half as u64, rest, &mut back)?;
                        other.join().map_err(|_| "a thread panicked")??;
                        Ok::<_, Box<dyn Error>>(())
                    })?;
                    black_box(touch(into));
                }
                _ => {
                    if way == b'k' {
                        // What was mapped before is not to be of use.
                        held = None;
                    }
                    let region = table.map(queue.next().ok_or("no descriptor")?, length)?;
                    black_box(touch(&region));
                    if way == b'k' {
                        held = Some(region);
                    }
                }
            }
            socket.write_all(&[way])?;
            if way == b'r' {
                held = None;
            }
            black_box(&held);
        }
    }

    fn read_number(socket: &mut UnixStream) -> Result<u64> {
        let mut bytes = [0; 8];
        socket.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn region(value: &[u8]) -> Result<Region> {
        let mut writer = RegionWriter::create(value.len(), &Quota::new(1, 1 << 40))?;
        writer.write_all(value)?;
        Ok(writer.seal()?)
    }

    /// A byte of each page.
    fn touch(bytes: &[u8]) -> u64 {
        bytes
            .iter()
            .step_by(4096)
            .map(|byte| u64::from(*byte))
            .sum()
    }
}
