//! The processes that ranks leave behind, as far as the launcher has to reap them.
//!
//! A process whose parent has ended is adopted by the next one above that asked for it, otherwise by the
//! first process of the machine or container. Who has ended counts as a member of its process group until
//! its parent has asked for its exit code, so a group is empty only if whoever adopts its orphans does
//! that. As the first process of a container the launcher adopts them anyway; elsewhere it asks to, so that
//! it depends on nobody.

use std::io;

use rustix::process::{Pid, WaitOptions, waitpgid, waitpid};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Tells when orphans may have ended.
#[derive(Debug)]
pub(super) struct Orphans(Signal);

impl Orphans {
    /// From now on this process adopts the orphans below it, where the system can do that.
    pub(super) fn adopt() -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self(signal(SignalKind::child())?))
    }

    /// Returns when some child has ended since.
    pub(super) async fn may_have_ended(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }

    /// Reaps those that have ended, wherever they have gone. Leaves the ranks themselves alone: others
    /// wait for their exit codes.
    pub(super) fn reap(&self, is_rank: impl Fn(Pid) -> bool) {
        // The system hands orphans to the first thread. Without this file those that have left their
        // group stay zombies for as long as the launcher runs, which is no more than untidy.
        let id = std::process::id();
        let children = std::fs::read_to_string(format!("/proc/self/task/{id}/children"));
        for word in children.unwrap_or_default().split_whitespace() {
            let child = word.parse().ok().and_then(Pid::from_raw);
            if let Some(child) = child.filter(|child| !is_rank(*child)) {
                let _ = waitpid(Some(child), WaitOptions::NOHANG);
            }
        }
    }
}

/// Reaps the members of a group that have ended. Its leader must have been waited for.
pub(super) fn reap_members(group: Pid) {
    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
}
