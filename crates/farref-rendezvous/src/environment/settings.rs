//! What the environment says about a worker: farref's own variables, and those that torchrun, Open MPI,
//! Slurm and Kubernetes set.
//!
//! farref's own variables win one by one. Beside them one launcher is heard: the first of torchrun,
//! Open MPI, Slurm and Kubernetes whose rank is there, so that a rank never meets the world size of
//! another launcher (torchrun started by Slurm). An empty variable counts as unset.

use std::fmt;
use std::net::IpAddr;

use super::launcher::Launcher;
use super::variables::{Variables, malformed};
use crate::error::RendezvousError;
use crate::identity::{MAX_WORLD_SIZE, check_name};
use crate::location::Rendezvous;
use crate::place_text::{ParseRendezvousError, UNLIKE, without_password};

/// What a worker learns from its variables.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The worker's name; `worker<rank>` unless `FARREF_NAME` says otherwise.
    pub name: Option<String>,
    /// Its rank.
    pub rank: Option<u32>,
    /// How many workers the group is founded with.
    pub world_size: Option<u32>,
    /// Where the group meets.
    pub rendezvous: Option<Rendezvous>,
    /// Under which address others reach this worker.
    pub advertise: Option<IpAddr>,
    /// The group's secret.
    pub token: Option<String>,
    /// The launcher hosts the store: rank 0 must not.
    pub hosted_elsewhere: bool,
    /// Names this run of the launcher's job, a new one after each restart of all workers. Keys of
    /// different runs in one store should be kept apart by it.
    pub run_id: Option<String>,
}

impl Settings {
    /// Reads this process's variables.
    pub fn from_env() -> Result<Self, RendezvousError> {
        Self::read(|variable| std::env::var(variable).ok())
    }

    /// Reads variables from wherever `get` finds them.
    pub(super) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, RendezvousError> {
        let variables = Variables(&get);
        let own_world_size = variables.world_size("FARREF_WORLD_SIZE")?;
        let own_rank = variables.rank("FARREF_RANK")?;
        let launcher = Launcher::detect(&variables, own_world_size);
        let rank = match own_rank {
            Some(rank) => Some(rank),
            None => launcher.rank(&variables)?,
        };
        let world_size = match own_world_size {
            Some(size) => Some(size),
            None => launcher.world_size(&variables)?,
        };
        if let (Some(given), Some(size)) = (rank, world_size)
            && given >= size
        {
            return Err(RendezvousError::Rank {
                rank,
                world_size,
                limit: MAX_WORLD_SIZE,
            });
        }
        let name = match variables.text("FARREF_NAME") {
            Some(name) => {
                check_name(&name)?;
                Some(name)
            }
            None => rank.map(|rank| format!("worker{rank}")),
        };
        let (rendezvous, from_launcher) = rendezvous(&variables, launcher)?;
        let agent_store = variables.flag("TORCHELASTIC_USE_AGENT_STORE")?;
        Ok(Self {
            name,
            rank,
            world_size,
            rendezvous,
            advertise: advertise(&variables)?,
            token: variables.text("FARREF_TOKEN"),
            hosted_elsewhere: from_launcher && agent_store,
            run_id: launcher.run_id(&variables),
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings are logged; the token must not be.
        let token = self.token.as_ref().map(|_| "(hidden)");
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("rendezvous", &self.rendezvous)
            .field("advertise", &self.advertise)
            .field("token", &token)
            .field("hosted_elsewhere", &self.hosted_elsewhere)
            .field("run_id", &self.run_id)
            .finish()
    }
}

/// Where to meet, and whether that is the launcher's word rather than `FARREF_RENDEZVOUS`'.
fn rendezvous(
    variables: &Variables<'_>,
    launcher: Launcher,
) -> Result<(Option<Rendezvous>, bool), RendezvousError> {
    let own = variables.text("FARREF_RENDEZVOUS");
    if let Some(text) = &own
        && text != "env://"
    {
        let parsed = text.parse().map_err(|error: ParseRendezvousError| {
            let mut expected =
                "tcp://host:port, file:///path, etcd://host:port/prefix or env://".to_owned();
            if error != UNLIKE {
                expected = format!("an etcd's place, but {error}");
            }
            malformed("FARREF_RENDEZVOUS", without_password(text), expected)
        })?;
        return Ok((Some(parsed), false));
    }
    let found = launcher.rendezvous(variables)?;
    if found.is_none() && own.is_some() {
        return Err(RendezvousError::Unset {
            variable: "MASTER_ADDR",
            why: "FARREF_RENDEZVOUS=env:// takes the rendezvous from MASTER_ADDR and \
                  MASTER_PORT, or from Slurm's variables",
        });
    }
    let from_launcher = found.is_some();
    Ok((found, from_launcher))
}

fn advertise(variables: &Variables<'_>) -> Result<Option<IpAddr>, RendezvousError> {
    let Some(text) = variables.text("FARREF_ADVERTISE") else {
        return Ok(None);
    };
    match text.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() => Ok(Some(ip)),
        _ => {
            let expected = "an IP address under which others reach this host".into();
            Err(malformed("FARREF_ADVERTISE", text, expected))
        }
    }
}
