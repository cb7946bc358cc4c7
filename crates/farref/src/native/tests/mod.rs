//! The laws of the native agent, over real sockets and over pipes that break on command.

mod closing;
mod delivery;
mod failures;
mod fixture;
mod helping;
mod memory;
mod proxy;
mod refusals;
mod sources;
mod timing;
mod writing;

use super::*;
use fixture::{Side, answerable, call, control, eventually};
