//! Where a launcher keeps what those need who look into its group: a directory that only this user can look into, with files
//! that are called after the address where the group meets; as Jupyter does it.

use std::fs::DirBuilder;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use farref::Rendezvous;
use rustix::process::geteuid;

/// Where it is.
pub fn path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("farref"),
        None => std::env::temp_dir().join(format!("farref-{}", geteuid().as_raw())),
    }
}

/// Makes it, if it is not there.
pub fn make() -> io::Result<PathBuf> {
    let path = path();
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    is_private(&path)?;
    Ok(path)
}

/// What the file of a group is called that has this kind of thing: all names of loopback are one.
pub fn name(host: &str, port: u16, kind: &str) -> String {
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    match host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback()) {
        true => format!("{port}.{kind}"),
        false => format!("{}:{port}.{kind}", host.replace('/', "_")),
    }
}

/// The file of the group that meets at an address, which need not be there.
pub fn find(address: &str, kind: &str) -> Option<PathBuf> {
    let address = address.trim();
    let place = match address.contains("://") {
        true => address.parse(),
        false => format!("tcp://{address}").parse(),
    };
    let Ok(Rendezvous::Tcp { host, port }) = place else {
        return None;
    };
    let path = path();
    is_private(&path).ok()?;
    Some(path.join(name(&host, port, kind)))
}

/// An error unless it is this user's own. Where everybody may make directories, somebody else may have made it first.
fn is_private(directory: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    match found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is there already, and others can look into it",
        )),
    }
}
