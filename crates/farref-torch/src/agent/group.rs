//! What the workers of a group tell each other about it, by calls of PyTorch's own functions.
//!
//! All workers of a static group come together twice, when they have joined and before they shut down: each
//! tells the leader, the one with the smallest name, that it is there, and the leader tells all. In a dynamic
//! group, whoever joins or leaves tells all others.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};

use super::answering::ready;
use super::inlets::Inlet;
use super::links::{Link, Pending, Queue, ToSend, lock};
use super::responses::plain_answer;
use super::{MAX_CALLS, Neighbour, Shared, Way, pickled};
use crate::pickle::{Shape, Writer};
use crate::rpc::{Message, Named, RpcError, Udf, WorkerInfo};
use crate::transport::Incoming;

const API: &str = "torch.distributed.rpc.api";
const BACKENDS: &str = "torch.distributed.rpc.backend_registry";
const UTILS: &str = "torch.distributed.rpc._utils";

/// The most gatherings that peers may begin before this worker takes part in them.
const MAX_GATHERINGS: usize = 64;

/// How long the store may take to answer when somebody is gone: it may have been the host.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// The longest name of a worker.
const NAME: usize = 127;

/// All numbers of workers are below.
const MAX_IDS: u16 = 1 << 15;

/// Who asks to join.
enum Admission {
    New(Arc<Link>),
    /// A member, which has asked before.
    Known(Arc<Link>),
    /// One that had a life before, which is over.
    Again(Arc<Link>),
}

/// What is known about gatherings.
#[derive(Debug, Default)]
pub(super) struct Group {
    gatherings: Mutex<HashMap<String, Gathering>>,
    changed: Notify,
    /// Who has not come to the gathering that this worker is at.
    missing: Mutex<Vec<String>>,
    /// The members of a static group that are gone, in the order in which they went.
    lost: Mutex<Vec<String>>,
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
    fn changed(&self) {
        self.changed.notify_waiters();
    }

    /// A member is gone. In a dynamic group nobody is waited for by name.
    pub(super) fn lose(&self, way: &Way, name: &str) {
        if matches!(way, Way::Static { .. }) {
            let mut lost = lock(&self.lost);
            if !lost.iter().any(|lost| lost == name) {
                lost.push(name.to_owned());
            }
        }
        self.changed();
    }

    /// Who of a static group went first.
    pub(super) fn first_lost(&self) -> Option<String> {
        lock(&self.lost).first().cloned()
    }

    /// Comes back when something has happened since this was called.
    pub(super) fn change(&self) -> Pin<Box<Notified<'_>>> {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        changed
    }

    /// There is always room for those that this worker comes to itself (`awaited`).
    fn note(
        &self,
        gathering: &str,
        awaited: bool,
        note: impl FnOnce(&mut Gathering),
    ) -> Result<(), RpcError> {
        let mut gatherings = self.gatherings();
        let is_new = !gatherings.contains_key(gathering);
        if gatherings.len() >= MAX_GATHERINGS && is_new && !awaited {
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

    /// Whether it is called by one that joins a dynamic group.
    pub(super) fn joins(&self, name: &Named<'_>) -> bool {
        matches!(
            (name.module, &*name.name),
            (BACKENDS, "_get_device_infos") | (UTILS, "_update_group_membership")
        )
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
                let (gathering, name) = (self.gathering(text(0)?)?, text(1)?);
                if name != self.name && self.link_by_name(&name).is_none() {
                    let what = "one who comes to a gathering and is no member".to_owned();
                    return Err(RpcError::Unsupported(what));
                }
                let awaited = self.comes_to(&gathering);
                self.group.note(&gathering, awaited, |gathering| {
                    // One for each member: their number is bounded by that.
                    gathering.there.insert(name);
                })?;
                answer.none();
            }
            "_broadcast_to_followers" => {
                let gathering = self.gathering(text(0)?)?;
                let awaited = self.comes_to(&gathering);
                self.group
                    .note(&gathering, awaited, |gathering| gathering.complete = true)?;
                answer.none();
            }
            "_get_device_infos" => return self.tell_devices(id, back),
            _ => {
                let (info, joins) = news(udf)?;
                if joins {
                    return Err(RpcError::Unsupported(
                        "joining: the worker is a member".to_owned(),
                    ));
                }
                // A worker speaks for itself. That others are gone is seen and not believed (MR-4).
                if info.name == link.name {
                    tracing::debug!(worker = %self.name, peer = %link.name, "a peer leaves");
                    link.leave();
                } else if matches!(self.way, Way::Static { .. }) || info.name == self.name {
                    let what = format!("worker {} says that {} is gone", link.name, info.name);
                    return Err(RpcError::Unsupported(what));
                } else {
                    tracing::debug!(worker = %self.name, peer = %link.name, gone = %info.name, "a peer says that another is gone");
                }
                answer.none();
            }
        }
        tracing::trace!(worker = %self.name, peer = %link.name, function = %udf.function.name, "group");
        self.answer_own(id, back, answer);
        Ok(())
    }

    /// Carries out a call of one that wants to be a member (IN-3). If it is to be one now, says which number it has.
    pub(super) fn ask_to_join(
        &self,
        inlet: &Inlet,
        udf: &Udf<'_, '_>,
        id: i64,
        back: &Queue,
    ) -> Result<Option<u16>, RpcError> {
        if &*udf.function.name == "_get_device_infos" {
            return self.tell_devices(id, back).map(|()| None);
        }
        let (info, joins) = news(udf)?;
        let is_fixed = matches!(self.way, Way::Static { .. });
        if !joins || info.name != inlet.name || is_fixed {
            let what = format!(
                "worker {} says that {} joins or leaves",
                inlet.name, info.name
            );
            return Err(RpcError::Unsupported(what));
        }
        Ok(Some(info.id))
    }

    /// No devices besides the processor, so none to map either.
    fn tell_devices(&self, id: i64, back: &Queue) -> Result<(), RpcError> {
        let mut answer = Writer::new(4);
        answer.int(0).empty_dict().empty_list().tuple_of(3);
        self.answer_own(id, back, answer);
        Ok(())
    }

    /// The name of a gathering, which is a number and the names of all who come.
    fn gathering(&self, name: String) -> Result<String, RpcError> {
        let most = (NAME + 1) * (self.members().by_node.len() + 2);
        match name.len() <= most {
            true => Ok(name),
            false => Err(RpcError::Unsupported(
                "a gathering with such a long name".to_owned(),
            )),
        }
    }

    /// Whether it is one of the two gatherings that this worker comes to.
    fn comes_to(&self, gathering: &str) -> bool {
        let Way::Static {
            names,
            gathering: last,
        } = &self.way
        else {
            return false;
        };
        let mut names = names.clone();
        names.sort();
        [last.saturating_sub(1), *last]
            .iter()
            .any(|number| gathering_of(&names, *number) == gathering)
    }

    fn answer_own(&self, id: i64, back: &Queue, answer: Writer) {
        let value = answer.finish();
        let (kind, bytes) = Message::PythonRet { value: &value }.encode();
        drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
    }

    /// A worker joins a dynamic group, and says so over this pipe.
    pub(super) async fn join(self: &Arc<Self>, inlet: &Inlet, worker: u16, id: i64, back: &Queue) {
        match self.admit(&inlet.name, worker).await {
            Ok(link) => {
                // If it is gone by now, who reads the pipe finds its end, and whose it was.
                self.claim(inlet, &link);
                let mut none = Writer::new(4);
                none.none();
                self.answer_own(id, back, none);
            }
            Err(text) => {
                let (kind, bytes) = super::answering::exception_message(&text);
                drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
            }
        }
    }

    async fn admit(self: &Arc<Self>, name: &str, worker: u16) -> Result<Arc<Link>, String> {
        let address = self.meeting.address_of(name).await;
        let address = address.map_err(|error| error.to_string())?;
        loop {
            let over = match self.try_admit(name, worker, &address)? {
                Admission::Known(link) => return Ok(link),
                Admission::New(link) => {
                    if let Some(inbound) = self.inbound.upgrade() {
                        Arc::clone(&inbound).admitted(link.node, name);
                        inbound.accepts(link.node, MAX_CALLS);
                    }
                    return Ok(link);
                }
                Admission::Again(over) => over,
            };
            self.lost(&over, over.departure());
            self.forget_member(over.node);
        }
    }

    /// Who that is. Two at once are not both new.
    fn try_admit(&self, name: &str, worker: u16, address: &str) -> Result<Admission, String> {
        if worker >= MAX_IDS {
            return Err(format!("{worker} is no number of a worker"));
        }
        if worker == self.me || name == self.name {
            return Err(format!("worker `{}` is worker {}", self.name, self.me));
        }
        let mut members = self.members_mut();
        let numbered = members.by_node.get(&self.lives.node(worker));
        let named = members.by_name.get(name);
        let named = named.and_then(|node| members.by_node.get(node));
        if let Some(known) = numbered
            && known.name != name
        {
            return Err(format!("worker `{}` has the number {worker}", known.name));
        }
        match (numbered, named) {
            (Some(known), _) if known.address == address && !known.is_gone() => {
                Ok(Admission::Known(Arc::clone(known)))
            }
            // It has come again before the end of its last life was noticed.
            (Some(known), _) => Ok(Admission::Again(Arc::clone(known))),
            (None, Some(other)) if other.address == address && !other.is_gone() => Err(format!(
                "worker `{name}` has another number, and is reached where it was"
            )),
            (None, Some(other)) => Ok(Admission::Again(Arc::clone(other))),
            (None, None) => {
                let neighbour = Neighbour {
                    id: worker,
                    name: name.to_owned(),
                    address: address.to_owned(),
                };
                let link = self.enter(&mut members, neighbour);
                Ok(Admission::New(link))
            }
        }
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
        answer.await.map_err(|_| self.gone(&link.name))
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
        self.group.gatherings().remove(&gathering);
        match result {
            Ok(()) => Ok(()),
            Err(problem) => Err(self.agree_on_lost(problem).await),
        }
    }

    /// What went wrong, if it is that a member is gone: in the words of whoever noticed first. This worker may have
    /// noticed others that went because of it, whose pipes closed after they had told the store.
    pub(super) async fn agree_on_lost(&self, problem: String) -> String {
        let Some(lost) = self.group.first_lost() else {
            return problem;
        };
        let agreed = self.meeting.first_lost(&lost);
        match tokio::time::timeout(ANSWER, agreed).await {
            Ok(Ok(first)) => is_gone(&first),
            _ => is_gone(&lost),
        }
    }

    async fn lead(self: &Arc<Self>, names: &[String], gathering: &str) -> Result<(), String> {
        let followers: Vec<&String> = names.iter().filter(|name| **name != self.name).collect();
        self.wait_for(|| {
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
        let first = self.group.first_lost();
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
            let gatherings = self.group.gatherings();
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
            let changed = self.group.change();
            let missing = missing();
            *lock(&self.group.missing) = missing.clone();
            let Some(one) = missing.first() else {
                return Ok(());
            };
            if self.group.first_lost().is_some() {
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
        let missing = lock(&self.group.missing);
        missing
            .iter()
            .map(|name| format!("worker `{name}`"))
            .collect()
    }

    /// All other members. Who has left and not yet gone is none of them any more.
    pub(super) fn staying(&self) -> Vec<Arc<Link>> {
        let mut others = self.others();
        others.retain(|link| !link.is_leaving());
        others
    }

    /// Tells another worker of a dynamic group that somebody joins or leaves.
    pub(super) async fn tell(
        self: &Arc<Self>,
        link: &Arc<Link>,
        who: WorkerInfo<'_>,
        joins: bool,
    ) -> Result<(), String> {
        let told = self.call_own(link, UTILS, "_update_group_membership", |writer| {
            writer.mark();
            who.write(writer);
            writer.empty_list().empty_dict().bool(joins).tuple();
        });
        told.await.map(drop)
    }

    /// Tells all other workers of a dynamic group that this one joins or leaves.
    pub(crate) async fn announce(self: &Arc<Self>, joins: bool) -> Result<(), String> {
        let others = self.staying();
        if joins {
            for link in &others {
                self.call_own(link, BACKENDS, "_get_device_infos", |writer| {
                    writer.tuple_of(0);
                })
                .await?;
            }
        }
        for link in &others {
            let (name, id) = (&self.name[..], self.me);
            let told = self.tell(link, WorkerInfo { name, id }, joins);
            if joins {
                told.await?;
                continue;
            }
            // A leaver waits neither for one that is gone nor for long for one that does not answer: meanwhile
            // nobody else can join or leave.
            match tokio::time::timeout(self.meeting.patience(), told).await {
                Err(_) => {
                    tracing::warn!(worker = %self.name, peer = %link.name, "a peer does not answer that this worker leaves");
                }
                Ok(Err(_)) if link.is_gone() => {}
                Ok(told) => told?,
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

/// The name of a gathering of workers, whose names are in order.
fn gathering_of(names: &[String], number: u64) -> String {
    format!("{}{number}", names.concat())
}

fn is_gone(name: &str) -> String {
    format!("worker `{name}` is gone, and was waited for")
}

/// Who joins or leaves.
fn news<'a>(udf: &Udf<'a, '_>) -> Result<(WorkerInfo<'a>, bool), RpcError> {
    let nobody = || RpcError::Unsupported("news about no worker".to_owned());
    let arguments = udf.arguments.tuple()?;
    let worker = *arguments.first().ok_or_else(nobody)?;
    let info = WorkerInfo::read(worker)?.ok_or_else(nobody)?;
    let joins = match arguments.last().map(|last| last.shape()).transpose()? {
        Some(Shape::Bool(joins)) => joins,
        _ => true,
    };
    Ok((info, joins))
}
