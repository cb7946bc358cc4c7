//! The other process: it has a ticket, and asks for the pool's descriptor.

use std::io::{IoSlice, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use farref_cuda::Ticket;
use farref_shm::{DescriptorQueue, receive, send};
use farref_testkit::TEST_TIMEOUT;
use serde::{Deserialize, Serialize};

/// Says that this process is the other one, and what it is to be.
const ROLE: &str = "FARREF_CUDA_ROLE";
/// The ticket, as the bytes' numbers.
const TICKET: &str = "FARREF_CUDA_TICKET";

/// What a ticket looks like on the wire.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Fields {
    pub(crate) host: [u8; 16],
    pub(crate) socket: String,
    pub(crate) secret: [u8; 32],
    pub(crate) pool: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) anchors: Vec<([u8; 32], [u8; 32])>,
}

impl Fields {
    pub(crate) fn of(ticket: &Ticket) -> Result<Self> {
        Ok(postcard::from_bytes(&postcard::to_allocvec(ticket)?)?)
    }

    pub(crate) fn ticket(&self) -> Result<Ticket> {
        Ok(postcard::from_bytes(&postcard::to_allocvec(self)?)?)
    }
}

/// Starts a process that is `role`, as this user or as another one.
pub(crate) fn start(role: &str, fields: &Fields, user: Option<u32>) -> Result<Child> {
    let bytes = postcard::to_allocvec(fields)?;
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let mut command = Command::new("/proc/self/exe");
    command
        .env(ROLE, role)
        .env(TICKET, numbers.join(" "))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user);
    }
    Ok(command.spawn()?)
}

pub(crate) fn is_one() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Is the other process. What it finds out it says on its standard output.
pub(crate) fn run() -> Result<()> {
    let numbers = std::env::var(TICKET)?;
    let bytes: Result<Vec<u8>, _> = numbers.split(' ').map(str::parse).collect();
    let fields: Fields = postcard::from_bytes(&bytes?)?;
    let address = SocketAddr::from_abstract_name(&fields.socket)?;
    match std::env::var(ROLE)?.as_str() {
        "asks" => {
            let stream = UnixStream::connect_addr(&address)?;
            stream.set_read_timeout(Some(TEST_TIMEOUT))?;
            let mut request = fields.secret.to_vec();
            request.extend(fields.pool.to_le_bytes());
            // Whoever is hung up on already cannot even ask.
            let _ = send(&stream, &[IoSlice::new(&request)], &[]);
            let mut queue = DescriptorQueue::new(4);
            let told = receive(&stream, &mut [0; 16], &mut queue).unwrap_or(0);
            print!("{told} bytes, {} descriptors", queue.len());
            // It is what the exporter's driver gave.
            if let Some(descriptor) = queue.next() {
                let mut content = Vec::new();
                let mut file = std::fs::File::from(descriptor);
                std::io::Seek::rewind(&mut file)?;
                file.read_to_end(&mut content)?;
                print!(", {} bytes in it", content.len());
            }
            Ok(())
        }
        "answers" => {
            // Says that it is there, then takes whatever comes and gives a descriptor.
            let listener = UnixListener::bind_addr(&address)?;
            print!("!");
            std::io::Write::flush(&mut std::io::stdout())?;
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(TEST_TIMEOUT))?;
            let mut request = Vec::new();
            let _ = std::io::Read::by_ref(&mut stream)
                .take(40)
                .read_to_end(&mut request);
            print!("{} bytes came", request.len());
            Ok(())
        }
        role => bail!("there is no role {role}"),
    }
}

/// What it says until it ends.
pub(crate) fn said(mut child: Child) -> Result<String> {
    let mut said = String::new();
    let mut output = child.stdout.take().context("it was piped")?;
    output.read_to_string(&mut said)?;
    ensure!(child.wait()?.success(), "the other process failed: {said}");
    Ok(said)
}
