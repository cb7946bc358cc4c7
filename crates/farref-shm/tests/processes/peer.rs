//! The other process: what it does, and how it is started.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use farref_shm::{BEACON, Beacon, DescriptorQueue, Quota, Region, RegionWriter, receive, send};
use farref_testkit::{TEST_TIMEOUT, eventually_blocking};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

/// Says that this process is the other one, and what it is to be.
const ROLE: &str = "FARREF_SHM_ROLE";
/// The socket to connect to.
const SOCKET: &str = "FARREF_SHM_SOCKET";

/// The length of most values: several pages, and not a whole number of them.
pub(crate) const LENGTH: usize = 300_001;
/// The length of a page, or a multiple of it.
const PAGE: usize = 64 << 10;

/// What a peer says beside its descriptors.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) length: usize,
    pub(crate) address: u64,
    pub(crate) beacon_address: u64,
    pub(crate) beacon: [u8; BEACON],
}

const NOTE: usize = 24 + BEACON;

/// What everybody can compute.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8)) as u8).collect()
}

/// Another process, and the socket to it. Killed when dropped.
pub(crate) struct Peer {
    pub(crate) socket: UnixStream,
    pub(crate) queue: DescriptorQueue,
    child: Child,
}

impl Peer {
    /// Starts a process that is `role`.
    pub(crate) fn start(role: &str) -> Result<Self> {
        Self::start_as(role, None)
    }

    /// The same, as another user.
    pub(crate) fn start_as(role: &str, user: Option<u32>) -> Result<Self> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("farref-shm-{}-{number}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .env(ROLE, role)
            .env(SOCKET, &name)
            .stdin(Stdio::null());
        if let Some(user) = user {
            command.uid(user);
        }
        let child = command.spawn()?;
        // One that cannot even connect must not be waited for.
        let mut ends = [PollFd::new(&listener, PollFlags::IN)];
        let timeout = Timespec::try_from(TEST_TIMEOUT)?;
        ensure!(
            poll(&mut ends, Some(&timeout))? == 1,
            "a peer does not connect"
        );
        let (socket, _) = listener.accept()?;
        socket.set_read_timeout(Some(TEST_TIMEOUT))?;
        let queue = DescriptorQueue::new(8);
        Ok(Self {
            socket,
            queue,
            child,
        })
    }

    /// What it says next; descriptors that come along are in the queue.
    pub(crate) fn note(&mut self) -> Result<Note> {
        let mut bytes = [0; NOTE];
        let mut have = 0;
        while have < NOTE {
            let read = receive(&self.socket, &mut bytes[have..], &mut self.queue)?;
            ensure!(read > 0, "the peer is gone");
            have += read;
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        Ok(Note {
            length: number(0).try_into()?,
            address: number(8),
            beacon_address: number(16),
            beacon: bytes[24..].try_into()?,
        })
    }

    /// The descriptor that came along.
    pub(crate) fn descriptor(&mut self) -> Result<OwnedFd> {
        self.queue.next().context("no descriptor came along")
    }

    /// Tells it to go on.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        Ok(self.socket.write_all(b"!")?)
    }

    /// Waits until it has closed its end of the socket.
    pub(crate) fn hung_up(&mut self) -> Result<()> {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test, after which all descriptors and mappings that it made are gone.
pub(crate) fn leaves_nothing_behind(test: fn() -> Result<()>) -> Result<()> {
    let before = descriptors()?;
    test()?;
    // Those of hostile peers are closed elsewhere.
    let is_clean = || Ok((descriptors()?, mappings()?) == (before, 0));
    eventually_blocking("no descriptors and mappings are left", is_clean).with_context(|| {
        let now = (descriptors().ok(), mappings().ok());
        format!("{before} descriptors and no mappings became {now:?}")
    })
}

/// How many descriptors are open.
pub(crate) fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// How many mappings of regions there are.
pub(crate) fn mappings() -> Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps
        .lines()
        .filter(|line| line.contains("/memfd:farref"))
        .count())
}

pub(crate) fn is_one() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Is the other process, until the socket is closed.
pub(crate) fn run() -> Result<()> {
    let address = SocketAddr::from_abstract_name(std::env::var(SOCKET)?)?;
    let socket = UnixStream::connect_addr(&address)?;
    let role = std::env::var(ROLE)?;
    let mut end = Served { socket };
    match role.as_str() {
        "region" => end.send_region(&region(LENGTH)?, LENGTH)?,
        "region twice" => {
            let region = region(LENGTH)?;
            end.send_region(&region, LENGTH)?;
            end.send_region(&region, LENGTH)?;
        }
        "empty region" => end.send_region(&region(0)?, 0)?,
        "two regions" => {
            end.send_region(&region(LENGTH)?, LENGTH)?;
            end.send_region(&region(LENGTH)?, LENGTH)?;
        }
        "attacks its region" => {
            let region = region(LENGTH)?;
            end.send_region(&region, LENGTH)?;
            end.wait()?;
            attack(region.descriptor())?;
            end.socket.write_all(b"!")?;
        }
        "no seals" => end.send_file(&file(LENGTH, SealFlags::empty())?)?,
        "can shrink" => end.send_file(&file(LENGTH, SealFlags::WRITE | SealFlags::GROW)?)?,
        "can write" => {
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
            end.send_file(&file(LENGTH, seals)?)?;
        }
        "can grow" => end.send_file(&file(LENGTH, SealFlags::WRITE | SealFlags::SHRINK)?)?,
        "too short" => end.send_file(&file(LENGTH - 1, sealed())?)?,
        "too long" => end.send_file(&file(LENGTH + 1, sealed())?)?,
        "cannot be read" => end.send_file(&write_only()?)?,
        "sparse" => {
            let sparse = memfd_create("farref", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&sparse, LENGTH as u64)?;
            fcntl_add_seals(&sparse, sealed())?;
            end.send_file(&sparse)?;
        }
        "sparse, with memory beyond" => {
            let sparse = memfd_create("farref", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&sparse, LENGTH as u64)?;
            // Beyond its end, from where it can be given back at any time.
            let beyond = LENGTH.next_multiple_of(PAGE) as u64;
            fallocate(
                &sparse,
                FallocateFlags::KEEP_SIZE,
                beyond,
                2 * LENGTH as u64,
            )?;
            fcntl_add_seals(&sparse, sealed())?;
            end.send_file(&sparse)?;
        }
        "a hole at its end, with memory beyond" => {
            let sparse = memfd_create("farref", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::io::pwrite(&sparse, &pattern(LENGTH - PAGE), 0)?;
            ftruncate(&sparse, LENGTH as u64)?;
            let beyond = LENGTH.next_multiple_of(PAGE) as u64;
            fallocate(
                &sparse,
                FallocateFlags::KEEP_SIZE,
                beyond,
                2 * LENGTH as u64,
            )?;
            fcntl_add_seals(&sparse, sealed())?;
            end.send_file(&sparse)?;
        }
        "a file" => end.send_file(&std::fs::File::open("/proc/self/exe")?.into())?,
        "a socket" => end.send_file(&UnixStream::pair()?.0.into())?,
        "three at once" => {
            let region = region(LENGTH)?;
            let descriptor = region.descriptor();
            end.send(LENGTH, 0, &[descriptor; 3])?;
        }
        "memory" => end.serve_memory(&pattern(LENGTH))?,
        "memory of another program" => {
            end.serve_memory(&pattern(LENGTH))?;
            end.wait()?;
            // The socket is closed by that, and the process stays.
            return Err(Command::new("sleep").arg("600").exec().into());
        }
        "wrong beacon" => {
            let beacon = Beacon::new([1; BEACON]);
            end.send_note(LENGTH, 0, beacon.address(), &[2; BEACON], &[])?;
            return end.wait_for_end();
        }
        _ => bail!("there is no role {role}"),
    }
    end.wait_for_end()
}

/// The end of the socket in the other process.
struct Served {
    socket: UnixStream,
}

impl Served {
    fn send_note(
        &self,
        length: usize,
        address: u64,
        beacon_address: u64,
        beacon: &[u8; BEACON],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let mut note = Vec::with_capacity(NOTE);
        note.extend((length as u64).to_le_bytes());
        note.extend(address.to_le_bytes());
        note.extend(beacon_address.to_le_bytes());
        note.extend(beacon);
        let sent = send(&self.socket, &[IoSlice::new(&note)], descriptors)?;
        ensure!(sent == NOTE, "only {sent} bytes were sent");
        Ok(())
    }

    fn send(&self, length: usize, address: u64, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_note(length, address, 0, &[0; BEACON], descriptors)
    }

    fn send_region(&self, region: &Region, length: usize) -> Result<()> {
        self.send(length, 0, &[region.descriptor()])
    }

    /// Says that a file is a region of the usual length.
    fn send_file(&self, file: &OwnedFd) -> Result<()> {
        self.send(LENGTH, 0, &[file.as_fd()])
    }

    /// Says where a value is, and a beacon. Both stay there.
    fn serve_memory(&self, value: &[u8]) -> Result<()> {
        let value: &[u8] = value.to_vec().leak();
        let beacon: &Beacon = Box::leak(Box::new(Beacon::new([0xA5; BEACON])));
        let address = value.as_ptr().addr() as u64;
        self.send_note(
            value.len(),
            address,
            beacon.address(),
            beacon.content(),
            &[],
        )
    }

    /// Waits until it is told to go on.
    fn wait(&mut self) -> Result<()> {
        Ok(self.socket.read_exact(&mut [0])?)
    }

    fn wait_for_end(&mut self) -> Result<()> {
        while self.socket.read(&mut [0]).is_ok_and(|read| read > 0) {}
        Ok(())
    }
}

fn region(length: usize) -> Result<Region> {
    let mut writer = RegionWriter::create(length, &Quota::new(8, 1 << 30))?;
    writer.write_all(&pattern(length))?;
    Ok(writer.seal()?)
}

fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL
}

/// Memory with these seals.
fn file(length: usize, seals: SealFlags) -> Result<OwnedFd> {
    let file = memfd_create("farref", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&pattern(length))?;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// A region that is open for writing only, by which nobody can write any more.
fn write_only() -> Result<OwnedFd> {
    let file = file(LENGTH, SealFlags::empty())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = std::fs::File::options().write(true).open(path)?;
    fcntl_add_seals(&file, sealed())?;
    Ok(again.into())
}

/// Everything that could change a region that was sent. None of it works.
fn attack(file: BorrowedFd<'_>) -> Result<()> {
    let again = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let rewritten = match &again {
        Ok(again) => rustix::io::pwrite(again, b"evil", 0).is_ok(),
        Err(_) => false,
    };
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (worked, what) in [
        (rustix::io::pwrite(file, b"evil", 0).is_ok(), "written"),
        (rewritten, "written after it was opened again"),
        (ftruncate(file, 0).is_ok(), "shortened"),
        (ftruncate(file, 1 << 30).is_ok(), "lengthened"),
        (fallocate(file, hole, 0, 4096).is_ok(), "made a hole into"),
    ] {
        ensure!(!worked, "a sealed region was {what}");
    }
    Ok(())
}
