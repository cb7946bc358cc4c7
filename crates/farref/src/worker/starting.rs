//! Setting a worker going, on whatever wire.

use std::sync::{Arc, Mutex};

use farref_proto::Membership;

use super::background::{keep_store, run_clock, watch_runtime};
use super::hosting::HostedStore;
use super::{Worker, WorkerGuard};
use crate::agent::Agent;
use crate::error::{ConfigError, Error, Result};
use crate::rendezvous::random;
use crate::runtime::Core;
use crate::runtime::registry::Registry;
use crate::runtime::settings::Settings;
use crate::support::io_thread::IoThread;
use crate::support::simulation::unsteady;
use crate::tables::names::Names;

/// Sets a worker going on whatever wire `agent` makes.
pub(super) fn launch<A: Agent>(
    name: String,
    settings: Settings,
    membership: Membership,
    names: Names,
    hosted: HostedStore,
    agent: impl FnOnce(&Arc<Core>, &Arc<IoThread>) -> Arc<A>,
) -> Result<Worker> {
    let io = io_thread()?;
    let core = Core::new(
        Arc::from(name),
        settings,
        membership,
        Arc::clone(&io),
        Registry::of_program()?,
        names,
        random()?,
    );
    core.attach(agent(&core, &io));
    if core.settings.require_majority {
        core.keep_all_in_sight();
    }
    let hosted = Arc::new(hosted);
    let keep_store = keep_store(Arc::downgrade(&core), Arc::downgrade(&hosted));
    let clock = io.spawn(run_clock(Arc::downgrade(&core)));
    let store_keeper = Mutex::new(Some(io.spawn(keep_store)));
    drop(tokio::spawn(unsteady(watch_runtime(Arc::downgrade(&core)))));
    let life = WorkerGuard {
        core: Arc::clone(&core),
        io,
        clock,
        store_keeper,
        hosted,
    };
    Ok(Worker {
        core,
        life: Some(Arc::new(life)),
    })
}

pub(super) fn io_thread() -> Result<Arc<IoThread>> {
    IoThread::get().map_err(|error| {
        Error::from(ConfigError::System {
            what: "thread for signs of life",
            reason: error.to_string(),
        })
    })
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    random::fill(&mut bytes).map_err(|error| ConfigError::System {
        what: "random numbers",
        reason: error.to_string(),
    })?;
    Ok(u64::from_le_bytes(bytes))
}
