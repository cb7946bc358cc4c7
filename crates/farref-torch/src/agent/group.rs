//! What the workers of a group tell each other about it, by calls of PyTorch's own functions.
//!
//! All workers of a static group come together twice, when they have joined and before they shut down: each
//! tells the leader, the one with the smallest name, that it is there, and the leader tells all. In a dynamic
//! group, whoever joins or leaves tells all others.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use farref::agent::Departure;
use tokio::sync::{Notify, oneshot};

use super::answering::ready;
use super::links::{Link, Pending, Queue, ToSend, lock};
use super::responses::plain_answer;
use super::{MAX_CALLS, Neighbour, Shared, pickled};
use crate::pickle::{Pickle, Shape, Writer};
use crate::rpc::{Kind, Message, Named, RpcError, Udf, WorkerInfo};
use crate::transport::Incoming;

const API: &str = "torch.distributed.rpc.api";
const BACKENDS: &str = "torch.distributed.rpc.backend_registry";
const UTILS: &str = "torch.distributed.rpc._utils";

/// The most gatherings that peers may begin before this worker takes part in them.
const MAX_GATHERINGS: usize = 64;

/// What is known about gatherings.
#[derive(Debug, Default)]
pub(super) struct Group {
    gatherings: Mutex<HashMap<String, Gathering>>,
    changed: Notify,
    /// Who has not come to the gathering that this worker is at.
    missing: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct Gathering {
    /// Who has told the leader.
    there: BTreeSet<String>,
    /// Whether the leader has told this worker.
    complete: bool,
}

impl Group {
    fn gatherings(&self) -> std::sync::MutexGuard<'_, HashMap<String, Gathering>> {
        lock(&self.gatherings)
    }

    /// Something has happened that whoever waits for the others must know.
    pub(super) fn changed(&self) {
        self.changed.notify_waiters();
    }

    fn note(&self, gathering: &str, note: impl FnOnce(&mut Gathering)) -> Result<(), RpcError> {
        let mut gatherings = self.gatherings();
        if gatherings.len() >= MAX_GATHERINGS && !gatherings.contains_key(gathering) {
            let what = "so many gatherings at once";
            return Err(RpcError::Unsupported(what.to_owned()));
        }
        note(gatherings.entry(gathering.to_owned()).or_default());
        drop(gatherings);
        self.changed();
        Ok(())
    }
}

impl Shared {
    /// Whether it is about the group that the function is called.
    pub(super) fn is_group_call(&self, name: &Named<'_>) -> bool {
        matches!(
            (name.module, &*name.name),
            (API, "_gather_to_leader" | "_broadcast_to_followers")
                | (BACKENDS, "_get_device_infos")
                | (UTILS, "_update_group_membership")
        )
    }

    /// Whether a message calls such a function.
    pub(super) fn is_group_request(&self, message: &Incoming) -> bool {
        let is_group_call = || {
            let kind = Kind::from_code(message.kind).ok()?;
            let Ok(Message::PythonCall { udf, .. }) = Message::decode(kind, &message.payload)
            else {
                return None;
            };
            let pickle = Pickle::read(udf).ok()?;
            let budget = pickle.budget();
            let udf = Udf::read(pickle.view(&budget)).ok()?;
            Some(self.is_group_call(&udf.function))
        };
        is_group_call() == Some(true)
    }

    /// Carries out a call about the group.
    pub(super) fn group_call(
        self: &Arc<Self>,
        link: &Arc<Link>,
        udf: &Udf<'_, '_>,
        id: i64,
        back: &Queue,
    ) -> Result<(), RpcError> {
        let arguments = udf.arguments.tuple()?;
        let text = |place: usize| {
            let view = arguments.get(place);
            let bytes = view.map_or(Ok(&b""[..]), |view| view.text())?;
            Ok::<_, RpcError>(String::from_utf8_lossy(bytes).into_owned())
        };
        let mut answer = Writer::new(4);
        match &*udf.function.name {
            "_gather_to_leader" => {
                let (gathering, name) = (text(0)?, text(1)?);
                self.group.note(&gathering, |gathering| {
                    // One for each member: their number is bounded by that.
                    gathering.there.insert(name);
                })?;
                answer.none();
            }
            "_broadcast_to_followers" => {
                self.group
                    .note(&text(0)?, |gathering| gathering.complete = true)?;
                answer.none();
            }
            "_get_device_infos" => {
                // No devices besides the processor, so none to map either.
                answer.int(0).empty_dict().empty_list().tuple_of(3);
            }
            _ => {
                let Some(&worker) = arguments.first() else {
                    return Err(RpcError::Unsupported("news about no worker".to_owned()));
                };
                let Some(info) = WorkerInfo::read(worker)? else {
                    return Err(RpcError::Unsupported("news about no worker".to_owned()));
                };
                let joins = match arguments.last().map(|last| last.shape()).transpose()? {
                    Some(Shape::Bool(joins)) => joins,
                    _ => true,
                };
                let (name, worker) = (info.name.to_owned(), info.id);
                let task = Arc::clone(self).change_member(name, worker, joins, id, back.clone());
                self.spawn(task);
                return Ok(());
            }
        }
        tracing::trace!(worker = %self.name, peer = %link.name, function = %udf.function.name, "group");
        self.answer_own(id, back, answer);
        Ok(())
    }

    fn answer_own(&self, id: i64, back: &Queue, answer: Writer) {
        let value = answer.finish();
        let (kind, bytes) = Message::PythonRet { value: &value }.encode();
        drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
    }

    /// A worker joins or leaves a dynamic group.
    async fn change_member(
        self: Arc<Self>,
        name: String,
        worker: u16,
        joins: bool,
        id: i64,
        back: Queue,
    ) {
        let changed = match joins {
            true if worker == self.me => Ok(()),
            true => self.admit(name, worker).await,
            false => {
                if let Some(link) = self.link(self.lives.node(worker)) {
                    self.lost(&link, Departure::Left);
                }
                Ok(())
            }
        };
        match changed {
            Ok(()) => {
                let mut none = Writer::new(4);
                none.none();
                self.answer_own(id, &back, none);
            }
            Err(text) => {
                let (kind, bytes) = super::answering::exception_message(&text);
                drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
            }
        }
    }

    async fn admit(self: &Arc<Self>, name: String, worker: u16) -> Result<(), String> {
        let address = self.meeting.address_of(&name).await;
        let address = address.map_err(|error| error.to_string())?;
        let known = self.link(self.lives.node(worker));
        if known.is_some_and(|link| link.address == address) {
            return Ok(());
        }
        let link = self.add_member(Neighbour {
            id: worker,
            name: name.clone(),
            address,
        });
        if let Some(inbound) = self.inbound.upgrade() {
            Arc::clone(&inbound).admitted(link.node, &name);
            inbound.accepts(link.node, MAX_CALLS);
        }
        Ok(())
    }

    /// Calls a function of PyTorch's on a peer and waits for the answer.
    pub(super) async fn call_own(
        self: &Arc<Self>,
        link: &Arc<Link>,
        module: &str,
        name: &str,
        arguments: impl FnOnce(&mut Writer),
    ) -> Result<Vec<u8>, String> {
        let udf = pickled::udf(module, name, arguments);
        let message = Message::PythonCall {
            is_async: false,
            udf: &udf,
        };
        let answer = self.ask_and_wait(link, &message).await?;
        plain_answer(&answer).map_err(|error| format!("worker `{}` says: {error}", link.name))
    }

    async fn ask_and_wait(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: &Message<'_>,
    ) -> Result<Incoming, String> {
        let (sender, answer) = oneshot::channel();
        self.ask(link, message, Pending::Own(sender));
        let gone = || format!("worker `{}` is gone", link.name);
        answer.await.map_err(|_| gone())
    }

    /// Comes together with all other workers of a static group. `number` counts the times.
    pub(crate) async fn gather(
        self: &Arc<Self>,
        names: &[String],
        number: u64,
    ) -> Result<(), String> {
        let mut names = names.to_vec();
        names.sort();
        let gathering = format!("{}{number}", names.concat());
        let result = match names.first() {
            Some(leader) if *leader == self.name => self.lead(&names, &gathering).await,
            Some(leader) => self.follow(leader, &names, &gathering).await,
            None => Ok(()),
        };
        self.group.gatherings().remove(&gathering);
        result
    }

    async fn lead(self: &Arc<Self>, names: &[String], gathering: &str) -> Result<(), String> {
        let followers: Vec<&String> = names.iter().filter(|name| **name != self.name).collect();
        self.wait_for(&followers, || {
            let gatherings = self.group.gatherings();
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
                return Err(format!("worker `{follower}` is gone"));
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

    async fn follow(
        self: &Arc<Self>,
        leader: &String,
        names: &[String],
        gathering: &str,
    ) -> Result<(), String> {
        let gone = || format!("worker `{leader}` is gone");
        let link = self.link_by_name(leader).ok_or_else(gone)?;
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
        self.wait_for(&[leader], || {
            let gatherings = self.group.gatherings();
            let complete = gatherings
                .get(gathering)
                .is_some_and(|gathering| gathering.complete);
            if complete {
                Vec::new()
            } else {
                vec![leader.clone()]
            }
        })
        .await
    }

    /// Waits until nobody is missing, or one of them is gone.
    async fn wait_for(
        &self,
        all: &[&String],
        missing: impl Fn() -> Vec<String>,
    ) -> Result<(), String> {
        loop {
            let changed = self.group.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let missing = missing();
            *lock(&self.group.missing) = missing.clone();
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(gone) = all.iter().find(|name| self.link_by_name(name).is_none()) {
                return Err(format!("worker `{gone}` is gone, and was waited for"));
            }
            changed.await;
        }
    }

    /// Who is waited for at the gathering that this worker is at.
    pub(super) fn waited_for(&self) -> Vec<String> {
        let missing = lock(&self.group.missing);
        missing
            .iter()
            .map(|name| format!("worker `{name}`"))
            .collect()
    }

    /// Tells all other workers of a dynamic group that this one joins or leaves.
    pub(crate) async fn announce(self: &Arc<Self>, joins: bool) -> Result<(), String> {
        let others = self.others();
        if joins {
            for link in &others {
                self.call_own(link, BACKENDS, "_get_device_infos", |writer| {
                    writer.tuple_of(0);
                })
                .await?;
            }
        }
        for link in &others {
            let told = self.call_own(link, UTILS, "_update_group_membership", |writer| {
                writer.mark();
                let (name, id) = (&self.name[..], self.me);
                WorkerInfo { name, id }.write(writer);
                writer.empty_list().empty_dict().bool(joins).tuple();
            });
            match told.await {
                // A leaver cannot wait for one that is gone.
                Err(_) if !joins && link.is_gone() => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// From now on peers may be sent as many calls as this crate sends at once.
    pub(crate) fn open_up(&self) {
        let Some(inbound) = self.inbound.upgrade() else {
            return;
        };
        for link in self.others() {
            Arc::clone(&inbound).accepts(link.node, MAX_CALLS);
        }
    }
}
