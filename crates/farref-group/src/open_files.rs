//! The limit of open files: processes that speak with many others need more than most systems allow at first.

use anyhow::{Context as _, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit if these, such as `64 workers`, need more than it allows now. Processes that are started later have it, too.
pub fn allow(need: u64, who: &str) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= need) {
        return Ok(());
    }
    let allowed = limit.maximum.is_none_or(|maximum| maximum >= need);
    ensure!(
        allowed,
        "{who} need {need} open files, and this machine allows fewer: raise `ulimit -Hn`"
    );
    let raised = Rlimit {
        current: Some(need),
        ..limit
    };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("cannot open {need} files for {who}; try `ulimit -n {need}`"))
}
