//! What the workers of a group tell each other about it, by calls of PyTorch's own functions.
//!
//! Those of a static group come together ([`gathering`](super::gathering)). In a dynamic group, whoever joins or leaves
//! tells all others.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::messages::{exception_message, ready};
use super::pickled;
use super::responses::plain_answer;
use super::state::AgentShared;
use super::state::accepted_pipes::AcceptedPipe;
use super::state::ending::GroupKind;
use super::state::links::{Link, Pending, Queue, ToSend};
use crate::group::Member;
use crate::pickle::{Shape, Writer};
use crate::rpc::{Message, Named, RpcError, Udf, WorkerInfo};
use crate::transport::Incoming;

pub(super) const API: &str = "torch.distributed.rpc.api";
pub(super) const BACKENDS: &str = "torch.distributed.rpc.backend_registry";
const UTILS: &str = "torch.distributed.rpc._utils";

/// How many calls a PyTorch worker is sent at once: it sets no limit of its own.
const MAX_CALLS: u32 = 4096;

/// All numbers of workers are below.
const MAX_IDS: u16 = 1 << 15;

/// Who asks to join.
enum Admission {
    New(Arc<Link>),
    /// A member, which has asked before.
    Known(Arc<Link>),
    /// An earlier incarnation of it, which is over.
    Again(Arc<Link>),
}

impl AgentShared {
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
                self.gatherings.note(&gathering, awaited, |gathering| {
                    // One for each member: their number is bounded by that.
                    gathering.there.insert(name);
                })?;
                answer.none();
            }
            "_broadcast_to_followers" => {
                let gathering = self.gathering(text(0)?)?;
                let awaited = self.comes_to(&gathering);
                self.gatherings
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
                } else if matches!(self.group_kind, GroupKind::Static { .. })
                    || info.name == self.name
                {
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
        accepted: &AcceptedPipe,
        udf: &Udf<'_, '_>,
        id: i64,
        back: &Queue,
    ) -> Result<Option<u16>, RpcError> {
        if &*udf.function.name == "_get_device_infos" {
            return self.tell_devices(id, back).map(|()| None);
        }
        let (info, joins) = news(udf)?;
        let is_fixed = matches!(self.group_kind, GroupKind::Static { .. });
        if !joins || info.name != accepted.name || is_fixed {
            let what = format!(
                "worker {} says that {} joins or leaves",
                accepted.name, info.name
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

    fn answer_own(&self, id: i64, back: &Queue, answer: Writer) {
        let value = answer.finish();
        let (kind, bytes) = Message::PythonRet { value: &value }.encode();
        drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
    }

    /// A worker joins a dynamic group, and says so over this pipe.
    pub(super) async fn join(
        self: &Arc<Self>,
        accepted: &AcceptedPipe,
        worker: u16,
        id: i64,
        back: &Queue,
    ) {
        match self.admit(&accepted.name, worker).await {
            Ok(link) => {
                // If it is gone by now, who reads the pipe finds its end, and whose it was.
                self.claim(accepted, &link);
                let mut none = Writer::new(4);
                none.none();
                self.answer_own(id, back, none);
            }
            Err(text) => {
                let (kind, bytes) = exception_message(&text);
                drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
            }
        }
    }

    async fn admit(self: &Arc<Self>, name: &str, worker: u16) -> Result<Arc<Link>, String> {
        let address = self.group_store.address_of(name).await;
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
        let numbered = members.by_node.get(&self.incarnations.node(worker));
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
            // It has come again before the end of its last incarnation was noticed.
            (Some(known), _) => Ok(Admission::Again(Arc::clone(known))),
            (None, Some(other)) if other.address == address && !other.is_gone() => Err(format!(
                "worker `{name}` has another number, and is reached where it was"
            )),
            (None, Some(other)) => Ok(Admission::Again(Arc::clone(other))),
            (None, None) => {
                let member = Member {
                    id: worker,
                    name: name.to_owned(),
                    address: address.to_owned(),
                };
                let link = self.enter(&mut members, member);
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
            match tokio::time::timeout(self.group_store.patience(), told).await {
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
