//! The variables a rank finds in its environment: torchrun's, and farref's.

use super::plan::Plan;
use crate::group_tls::GroupTls;
use farref_group::{GroupToken, TOKEN_VARIABLE, threads_to_limit};

/// Variables of the launcher's own environment that must not reach the ranks: they would win over what
/// the launcher says, and be the same for all.
pub(super) const REMOVED: [&str; 4] = [
    "FARREF_NAME",
    "FARREF_RANK",
    "FARREF_WORLD_SIZE",
    "FARREF_RENDEZVOUS",
];

/// Where the ranks meet, and in which run.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
    /// Keeps the keys of different launches apart.
    pub(super) run_id: String,
    /// What its ranks prove to each other, unless the user has seen to that.
    pub(super) token: Option<GroupToken>,
    /// The certificates of its ranks, where they have some.
    pub(super) tls: Option<GroupTls>,
}

/// Which of its starts this is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// How often all ranks were started again. farref and PyTorch keep the keys of different rounds
    /// apart, so a rank that alone comes back must find the number it had before.
    pub(super) round: u32,
    /// How often this rank was started again.
    pub(super) restarts: u32,
    /// How often that may happen.
    pub(super) limit: u32,
}

pub(super) fn variables(
    plan: &Plan,
    local: u32,
    place: &Place,
    attempt: Attempt,
) -> Vec<(&'static str, String)> {
    let mut variables = vec![
        ("RANK", plan.rank(local).to_string()),
        ("WORLD_SIZE", plan.world_size().to_string()),
        ("LOCAL_RANK", local.to_string()),
        ("LOCAL_WORLD_SIZE", plan.ranks.to_string()),
        ("GROUP_RANK", plan.node.to_string()),
        ("GROUP_WORLD_SIZE", plan.nodes.to_string()),
        ("MASTER_ADDR", place.host.clone()),
        ("MASTER_PORT", place.port.to_string()),
        // The launcher of node 0 hosts the store, so that rank 0 may be started again like any other.
        ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
        ("TORCHELASTIC_RUN_ID", place.run_id.clone()),
        ("TORCHELASTIC_RESTART_COUNT", attempt.round.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", attempt.limit.to_string()),
        ("FARREF_RESTART_COUNT", attempt.restarts.to_string()),
    ];
    if let Some(token) = &place.token {
        variables.push((TOKEN_VARIABLE, token.secret().to_owned()));
    }
    if let Some(tls) = &place.tls {
        variables.extend(tls.variables(local));
    }
    if let Some(name) = plan.name(local) {
        variables.push(("FARREF_NAME", name.to_owned()));
    }
    for name in threads_to_limit(plan.ranks) {
        variables.push((*name, "1".into()));
    }
    // Python holds back what it prints into a pipe, and loses it if it is killed.
    if std::env::var_os("PYTHONUNBUFFERED").is_none() {
        variables.push(("PYTHONUNBUFFERED", "1".into()));
    }
    variables
}
