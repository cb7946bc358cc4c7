//! How the workers of a static group come together, by calls of PyTorch's own functions.
//!
//! They do so twice, when they have joined and before they shut down: each tells the leader, the one with the smallest
//! name, that it is there, and the leader tells all.

use std::sync::Arc;
use std::time::Duration;

use super::group::{API, BACKENDS};
use super::pickled;
use super::state::AgentShared;
use super::state::ending::GroupKind;
use super::state::links::{Pending, lock};
use crate::pickle::Writer;
use crate::rpc::{Message, RpcError};

/// How long the store may take to answer when somebody is gone: it may have been the host.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// The longest name of a worker.
const NAME: usize = 127;

impl AgentShared {
    /// The name of a gathering, which is a number and the names of all who come.
    pub(super) fn gathering(&self, name: String) -> Result<String, RpcError> {
        let most = (NAME + 1) * (self.members().by_node.len() + 2);
        match name.len() <= most {
            true => Ok(name),
            false => Err(RpcError::Unsupported(
                "a gathering with such a long name".to_owned(),
            )),
        }
    }

    /// Whether it is one of the two gatherings that this worker comes to.
    pub(super) fn comes_to(&self, gathering: &str) -> bool {
        let GroupKind::Static {
            names,
            gathering: last,
        } = &self.group_kind
        else {
            return false;
        };
        let mut names = names.clone();
        names.sort();
        [last.saturating_sub(1), *last]
            .iter()
            .any(|number| gathering_of(&names, *number) == gathering)
    }

    /// Comes together with all other workers of a static group. `number` counts the times.
    pub(crate) async fn gather(
        self: &Arc<Self>,
        names: &[String],
        number: u64,
    ) -> Result<(), String> {
        let mut names = names.to_vec();
        names.sort();
        let gathering = gathering_of(&names, number);
        let result = match names.first() {
            Some(leader) if *leader == self.name => self.lead(&names, &gathering).await,
            Some(leader) => self.follow(leader, &names, &gathering).await,
            None => Ok(()),
        };
        self.gatherings.open().remove(&gathering);
        match result {
            Ok(()) => Ok(()),
            Err(problem) => Err(self.agree_on_lost(problem).await),
        }
    }

    /// What went wrong, if it is that a member is gone: in the words of whoever noticed first. This worker may have
    /// noticed others that went because of it, whose pipes closed after they had told the store.
    pub(super) async fn agree_on_lost(&self, problem: String) -> String {
        let Some(lost) = self.gatherings.first_lost() else {
            return problem;
        };
        let agreed = self.group_store.first_lost(&lost);
        match tokio::time::timeout(ANSWER, agreed).await {
            Ok(Ok(first)) => is_gone(&first),
            _ => is_gone(&lost),
        }
    }

    async fn lead(self: &Arc<Self>, names: &[String], gathering: &str) -> Result<(), String> {
        let followers: Vec<&String> = names.iter().filter(|name| **name != self.name).collect();
        self.wait_for(|| {
            let gatherings = self.gatherings.open();
            let there = gatherings.get(gathering).map(|gathering| &gathering.there);
            let missing = |name: &&&String| !there.is_some_and(|there| there.contains(**name));
            followers
                .iter()
                .filter(missing)
                .map(|name| (*name).clone())
                .collect()
        })
        .await?;
        let mut told = Vec::new();
        for follower in followers {
            let Some(link) = self.link_by_name(follower) else {
                return Err(self.gone(follower));
            };
            let shared = Arc::clone(self);
            let (gathering, names) = (gathering.to_owned(), names.to_vec());
            told.push(tokio::spawn(async move {
                let arguments = |writer: &mut Writer| {
                    writer.text(gathering.as_bytes()).empty_dict().mark();
                    for name in &names {
                        writer.text(name.as_bytes()).none();
                    }
                    writer.set_items().tuple_of(2);
                };
                shared
                    .call_own(&link, API, "_broadcast_to_followers", arguments)
                    .await
            }));
        }
        for told in told {
            told.await.map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    /// That somebody who is waited for is gone: the one who went first, because others may have gone for want of it.
    pub(super) fn gone(&self, name: &str) -> String {
        let first = self.gatherings.first_lost();
        is_gone(first.as_deref().unwrap_or(name))
    }

    async fn follow(
        self: &Arc<Self>,
        leader: &str,
        names: &[String],
        gathering: &str,
    ) -> Result<(), String> {
        let link = self.link_by_name(leader);
        let link = link.ok_or_else(|| self.gone(leader))?;
        let arguments = |writer: &mut Writer| {
            writer
                .mark()
                .text(gathering.as_bytes())
                .text(self.name.as_bytes())
                .none();
            writer.empty_set().mark();
            for name in names {
                writer.text(name.as_bytes());
            }
            writer.add_items().tuple();
        };
        self.call_own(&link, API, "_gather_to_leader", arguments)
            .await?;
        self.wait_for(|| {
            let gatherings = self.gatherings.open();
            let complete = gatherings
                .get(gathering)
                .is_some_and(|gathering| gathering.complete);
            if complete {
                Vec::new()
            } else {
                vec![leader.to_owned()]
            }
        })
        .await
    }

    /// Waits until nobody is missing, or a member is gone: nobody comes to a gathering that is not of all.
    async fn wait_for(&self, missing: impl Fn() -> Vec<String>) -> Result<(), String> {
        loop {
            let changed = self.gatherings.change();
            let missing = missing();
            *lock(&self.gatherings.missing) = missing.clone();
            let Some(one) = missing.first() else {
                return Ok(());
            };
            if self.gatherings.first_lost().is_some() {
                return Err(self.gone(one));
            }
            changed.await;
        }
    }

    /// Opens a pipe to every member that there is none to, so that its death shows: in a static group each waits for
    /// all at the end, and most of them have nothing to say to each other before.
    pub(super) fn watch_all(self: &Arc<Self>) {
        for link in self.others().iter().filter(|link| !link.has_pipe()) {
            let udf = pickled::udf(BACKENDS, "_get_device_infos", |writer| {
                writer.tuple_of(0);
            });
            let message = Message::PythonCall {
                is_async: false,
                udf: &udf,
            };
            self.ask(link, &message, Pending::Quiet);
        }
    }

    /// Who is waited for at the gathering that this worker is at.
    pub(super) fn waited_for(&self) -> Vec<String> {
        let missing = lock(&self.gatherings.missing);
        missing
            .iter()
            .map(|name| format!("worker `{name}`"))
            .collect()
    }
}

/// The name of a gathering of workers, whose names are in order.
fn gathering_of(names: &[String], number: u64) -> String {
    format!("{}{number}", names.concat())
}

fn is_gone(name: &str) -> String {
    format!("worker `{name}` is gone, and was waited for")
}
