//! Driving the protocol: what the program wants and what peers say, brought to the node one at a time.

mod answering;
mod contexts;
mod ending;
mod events;
mod incoming;
mod input;
mod local_calls;
#[cfg(test)]
mod made_up;
mod name_lookup;
mod naming;
mod outgoing;
mod parking;
mod references;
mod watching;
mod work;

pub(crate) use outgoing::{CallSpec, NotMade, OpenCall};
