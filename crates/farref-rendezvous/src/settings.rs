//! What the environment says about a worker: farref's own variables, and those that torchrun, Slurm
//! and Kubernetes set.
//!
//! farref's own variables win one by one. Beside them one launcher is heard: the first of torchrun,
//! Slurm and Kubernetes whose rank is there, so that a rank never meets the world size of another
//! launcher (torchrun started by Slurm). An empty variable counts as unset.

use std::fmt;
use std::net::IpAddr;

use super::error::RendezvousError;
use super::launcher::{Launcher, default_port, first_host};
use super::ledger::MAX_WORLD_SIZE;
use super::location::{Rendezvous, is_host};

/// What a worker learns from its environment.
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
    /// Reads this process's environment.
    pub fn from_env() -> Result<Self, RendezvousError> {
        Self::read(|variable| std::env::var(variable).ok())
    }

    /// Reads variables from wherever `get` finds them.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, RendezvousError> {
        let environment = Environment(&get);
        let own_world_size = environment.world_size("FARREF_WORLD_SIZE")?;
        let own_rank = environment.number("FARREF_RANK")?;
        let launcher = Launcher::detect(&environment, own_world_size);
        let rank = match own_rank {
            Some(rank) => Some(rank),
            None => launcher.rank(&environment)?,
        };
        let world_size = match own_world_size {
            Some(size) => Some(size),
            None => launcher.world_size(&environment)?,
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
        let name = match environment.text("FARREF_NAME") {
            Some(name) => {
                check_name(&name)?;
                Some(name)
            }
            None => rank.map(|rank| format!("worker{rank}")),
        };
        let (rendezvous, from_launcher) = environment.rendezvous(launcher)?;
        let agent_store = environment.flag("TORCHELASTIC_USE_AGENT_STORE")?;
        Ok(Self {
            name,
            rank,
            world_size,
            rendezvous,
            advertise: environment.advertise()?,
            token: environment.text("FARREF_TOKEN"),
            hosted_elsewhere: from_launcher && agent_store,
            run_id: launcher.run_id(&environment),
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

/// Refuses what cannot be a worker's name.
pub fn check_name(name: &str) -> Result<(), RendezvousError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_:.".contains(c);
    if (1..=127).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(RendezvousError::Name { name: name.into() })
}

/// Typed access to variables; every error names the variable and its value.
pub(super) struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    pub(super) fn text(&self, variable: &str) -> Option<String> {
        (self.0)(variable)
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
    }

    pub(super) fn number(&self, variable: &'static str) -> Result<Option<u32>, RendezvousError> {
        let Some(text) = self.text(variable) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) if number < MAX_WORLD_SIZE => Ok(Some(number)),
            _ => {
                let expected = format!("a number from 0 to {}", MAX_WORLD_SIZE - 1);
                Err(setting(variable, text, expected))
            }
        }
    }

    pub(super) fn world_size(
        &self,
        variable: &'static str,
    ) -> Result<Option<u32>, RendezvousError> {
        let Some(text) = self.text(variable) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(size) if (1..=MAX_WORLD_SIZE).contains(&size) => Ok(Some(size)),
            _ => {
                let expected = format!("a number from 1 to {MAX_WORLD_SIZE}");
                Err(setting(variable, text, expected))
            }
        }
    }

    /// Where to meet, and whether that is the launcher's word rather than `FARREF_RENDEZVOUS`'.
    fn rendezvous(
        &self,
        launcher: Launcher,
    ) -> Result<(Option<Rendezvous>, bool), RendezvousError> {
        let own = self.text("FARREF_RENDEZVOUS");
        if let Some(text) = &own
            && text != "env://"
        {
            let parsed = text.parse().map_err(|_| {
                let expected = "tcp://host:port, file:///path or env://".into();
                setting("FARREF_RENDEZVOUS", text.clone(), expected)
            })?;
            return Ok((Some(parsed), false));
        }
        let found = self.launchers_rendezvous(launcher)?;
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

    fn launchers_rendezvous(
        &self,
        launcher: Launcher,
    ) -> Result<Option<Rendezvous>, RendezvousError> {
        let host = match self.text("MASTER_ADDR") {
            Some(host) if is_host(&host) => host,
            Some(host) => {
                return Err(setting(
                    "MASTER_ADDR",
                    host,
                    "a host's name or address".into(),
                ));
            }
            None if launcher == Launcher::Slurm => match first_host(self)? {
                Some(host) => host,
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let port = match self.text("MASTER_PORT") {
            Some(text) => match text.parse() {
                Ok(port) if port > 0 => port,
                _ => {
                    let expected = "a port from 1 to 65535".into();
                    return Err(setting("MASTER_PORT", text, expected));
                }
            },
            None if launcher == Launcher::Slurm => default_port(self)?,
            None => {
                return Err(RendezvousError::Unset {
                    variable: "MASTER_PORT",
                    why: "MASTER_ADDR is set, and a rendezvous needs both",
                });
            }
        };
        Ok(Some(Rendezvous::Tcp { host, port }))
    }

    fn advertise(&self) -> Result<Option<IpAddr>, RendezvousError> {
        let Some(text) = self.text("FARREF_ADVERTISE") else {
            return Ok(None);
        };
        match text.parse::<IpAddr>() {
            Ok(ip) if !ip.is_unspecified() => Ok(Some(ip)),
            _ => {
                let expected = "an IP address under which others reach this host".into();
                Err(setting("FARREF_ADVERTISE", text, expected))
            }
        }
    }

    fn flag(&self, variable: &'static str) -> Result<bool, RendezvousError> {
        let text = self.text(variable).unwrap_or_default();
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "" | "false" | "0" => Ok(false),
            _ => Err(setting(variable, text, "True or False".into())),
        }
    }
}

pub(super) fn setting(variable: &'static str, value: String, expected: String) -> RendezvousError {
    RendezvousError::Setting {
        variable,
        value,
        expected,
    }
}
