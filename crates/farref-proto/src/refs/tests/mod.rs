//! The law book of the reference table, on tables joined by queues that the test empties by hand.
//!
//! | file | laws |
//! | --- | --- |
//! | `transitions` | every step of a reference's life, between nodes that stay alive |
//! | `pending` | what arrives before the creation, types, bounds |
//! | `borrowers` | Ray's `reference_counter_test.cc`, test by test |
//! | `idempotence` | repeats and late messages |
//! | `departures` | holders, owners, creators and middle workers that die |
//! | `misbehaviour` | peers that break the protocol change nothing |
//! | `hearsay` | what somebody says that is not true, and others believe |
//! | `closing` | counters, leaks, forced release, the end of the table |
//! | `holds` | what a driver keeps for references that its program holds |
//! | `random` | the same laws under orders nobody thought of |

mod borrowers;
mod closing;
mod departures;
mod hearsay;
mod holds;
mod idempotence;
mod misbehaviour;
mod pending;
mod random;
mod tables;
mod transitions;
