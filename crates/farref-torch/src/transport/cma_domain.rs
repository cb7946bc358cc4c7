//! Which processes can read each other's memory, in the words of TensorPipe.
//!
//! Two workers use the channel `cma` if both say the same: they run on one system since the same start, know each other's
//! process numbers, belong to the same user, and may do the same things. What is said here is byte for byte what PyTorch's
//! workers say of themselves.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::{fs, io};

use farref_shm::{ProcessMemory, is_readable, permit_same_user};

use super::PeerProcess;

/// The system lets processes read only their descendants' memory, unless these agree.
const DESCENDANTS: u32 = 1;

/// Who this process could exchange tensors with through memory. None where the system does not let it. Where it does
/// so only if a process agrees, this one does if it is to (`agree`).
pub(crate) fn cma_domain(agree: bool) -> Option<&'static str> {
    static DOMAIN: OnceLock<Option<String>> = OnceLock::new();
    match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) => match scope.trim().parse() {
            Ok(0) => {}
            Ok(DESCENDANTS) if agree && permit_same_user().is_ok() => {}
            _ => return None,
        },
        // There is no such restriction.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => return None,
    }
    if !is_readable() || !PeerProcess::can_be_known() {
        return None;
    }
    DOMAIN.get_or_init(domain).as_deref()
}

fn domain() -> Option<String> {
    if !reads_itself() {
        return None;
    }
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = |name: &str| {
        let place = format!("/proc/self/ns/{name}");
        let known = fs::symlink_metadata(&place).ok()?.is_symlink();
        let metadata = fs::metadata(&place).ok().filter(|_| known)?;
        Some(format!("{:x}_{:x}", metadata.dev(), metadata.ino()))
    };
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let (user, group) = (one_id(field("Uid:")?)?, one_id(field("Gid:")?)?);
    let rights = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
    let (processes, users) = (namespace("pid")?, namespace("user")?);
    let start = start.trim_end();
    Some(format!(
        "cma:{start}_{processes}_{users}_{user}_{group}_{rights:x}"
    ))
}

/// The real, the effective and the saved id, if they are the same.
fn one_id(ids: &str) -> Option<u32> {
    let mut ids = ids.split_whitespace().take(3).map(str::parse::<u32>);
    let first = ids.next()?.ok()?;
    ids.all(|id| id == Ok(first)).then_some(first)
}

/// Whether the system has the call, and no sandbox forbids it.
fn reads_itself() -> bool {
    let value = [0x5a_u8; 8];
    let mut copy = Vec::with_capacity(value.len());
    let memory = ProcessMemory::open(std::process::id());
    let address = value.as_ptr().addr() as u64;
    let read = memory.and_then(|memory| memory.read(address, value.len(), &mut copy));
    read.is_ok() && copy == value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_users_has_no_domain() {
        assert_eq!(one_id("\t7\t7\t7\t9"), Some(7));
        for ids in ["\t7\t8\t7\t7", "\t7\t7\t8\t7", "", "x y z"] {
            assert_eq!(one_id(ids), None);
        }
    }

    #[test]
    fn the_domain_of_this_process_has_all_parts() {
        let Some(domain) = domain() else {
            return assert!(!reads_itself(), "there is no reason for none");
        };
        let rest = domain.strip_prefix("cma:").expect("its name");
        assert_eq!(rest.split('_').count(), 8, "{domain}");
    }
}
