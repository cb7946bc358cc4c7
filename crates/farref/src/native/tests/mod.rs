//! The laws of the native agent, over real sockets and over pipes that break on command.

mod closing;
mod delivery;
mod failures;
mod few_threads;
mod fixture;
mod impostors;
mod memory;
mod newcomers;
mod proxy;
mod refusals;
mod regions;
mod shared_memory;
mod sources;
mod starvation;
mod timing;
pub(super) mod tls;
mod writing;

use std::sync::{Arc, Mutex, Weak};

use farref_proto::{Departure, NodeId};
use tokio::time::{Instant, timeout};

use super::*;
use crate::agent::{Agent, Inbound, LinkStatistics, Message};
use crate::rendezvous::Card;
use crate::support::io_thread::IoThread;
use fixture::{Side, answerable, call, control, eventually};
