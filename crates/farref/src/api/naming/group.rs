//! Lookups in the whole group: all members are asked, and the first of those counts who have it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farref_proto::NodeId;

use super::{Answer, Found, Patience, Search};
use crate::api::call::Call;
use crate::api::peer::Peer;
use crate::api::watching::{MemberEvent, Members};
use crate::error::{Error, FunctionName, Result, THE_GROUP};
use crate::runtime::current::Current;
use crate::support::clock::Instant;
use crate::support::mutation::mutated;

impl<T: 'static> Search<T> {
    /// What the name stands for in the group now.
    pub(super) async fn in_group_now(&self) -> Result<Option<Found<T>>> {
        let mut group = Group::new(self.limit());
        match self.first_of(&mut group, &self.members()).await? {
            None => group.nothing(),
            found => Ok(found),
        }
    }

    /// What the name stands for in the group is what the first has who has it. If that is not what is looked for, it
    /// changes only by who comes before that one, or by that one itself: they are asked to say so. If nobody has it,
    /// all are.
    pub(super) async fn in_group(&self) -> Result<Found<T>> {
        let mut group = Group::new(self.limit());
        // From the beginning, so that no newcomer is missed.
        let members = Members::watch(&self.core);
        loop {
            let present = self.members();
            let first = match self.first_of(&mut group, &present).await? {
                Some(found) if self.is_newer(found.1) => return Ok(found),
                first => first.map(|(_, version)| version.publisher.worker),
            };
            let ask = |group: &Group, life: NodeId| {
                let patience = match first {
                    Some(first) if life.worker > first => return None,
                    Some(first) if life.worker == first => Patience::WhileThere,
                    _ => Patience::Endless,
                };
                self.ask_life(group, life, patience)
            };
            let present = present.into_iter();
            let mut asked: Vec<Asked> = present.filter_map(|life| ask(&group, life)).collect();
            loop {
                match poll_fn(|context| poll_any(&mut asked, &members, context)).await {
                    News::Answered(of, answer) => {
                        if let Some(found) = self.of_group(&mut group, &of, answer)? {
                            return Ok(found);
                        }
                        // The first has it no more, so it is another's turn.
                        if first == Some(of.life.worker) {
                            break;
                        }
                    }
                    News::Event(Some(MemberEvent::Joined(member))) => {
                        // Those who were there have been asked.
                        if !asked.iter().any(|asked| asked.life == member.node()) {
                            asked.extend(ask(&group, member.node()));
                        }
                    }
                    News::Event(Some(MemberEvent::Ended(_)) | None) => {
                        return Err(self.core.not_member());
                    }
                    News::Event(_) => {}
                }
            }
        }
    }

    /// The lives that are there at present, by their numbers.
    fn members(&self) -> Vec<NodeId> {
        self.core
            .look(|node| node.membership().view().members().collect())
    }

    /// What the first of those has who have something of that name now. All are asked at once.
    async fn first_of(&self, group: &mut Group, members: &[NodeId]) -> Result<Option<Found<T>>> {
        let ask = |life: &NodeId| self.ask_life(group, *life, Patience::None);
        let mut asked: VecDeque<Asked> = members.iter().filter_map(ask).collect();
        if mutated!(HighestCounts) {
            asked.make_contiguous().reverse();
        }
        poll_fn(|context| {
            for asked in &mut asked {
                asked.poll(context);
            }
            // Who comes before has to have answered.
            while let Some(first) = asked.front_mut() {
                let Some(answer) = first.came.take() else {
                    return Poll::Pending;
                };
                let found = match answer {
                    // Whether it has the name is not known.
                    Err(Error::Timeout { peer, function, .. }) => Err(group.late(peer, function)),
                    answer => self.of_group(group, first, answer),
                }?;
                asked.pop_front();
                if found.is_some() {
                    return Poll::Ready(Ok(found));
                }
            }
            Poll::Ready(Ok(None))
        })
        .await
    }

    /// None: it has failed, and would again.
    fn ask_life(&self, group: &Group, life: NodeId, patience: Patience) -> Option<Asked> {
        if group.failed.iter().any(|(failed, _)| *failed == life) {
            return None;
        }
        let member = Peer::of(&self.core, life);
        let answer = self.ask(&member, patience, group.left());
        Some(Asked {
            life,
            member,
            answer,
            came: None,
        })
    }

    /// What an answer means for the group. Who is gone has nothing, and who cannot answer fails nobody else's answer.
    fn of_group(
        &self,
        group: &mut Group,
        asked: &Asked,
        answer: Result<Answer>,
    ) -> Result<Option<Found<T>>> {
        match answer {
            Ok(answer) => self.found(&asked.member, answer),
            Err(Error::PeerLost { .. }) => Ok(None),
            Err(_) if !self.core.is_member() => Err(self.core.not_member()),
            // All have said before that they do not have it.
            Err(Error::Timeout { function, .. }) => Err(group.late(Arc::from(THE_GROUP), function)),
            Err(error) => {
                tracing::debug!(worker = %self.core.name, name = &*self.name, %error, "a member could not be asked");
                group.failed.push((asked.life, error));
                Ok(None)
            }
        }
    }
}

/// A lookup in the whole group: how long it may take, and who could not be asked.
struct Group {
    began: Instant,
    deadline: Option<Instant>,
    failed: Vec<(NodeId, Error)>,
}

impl Group {
    fn new(limit: Option<Duration>) -> Self {
        let began = Instant::now();
        let own = limit.and_then(|limit| began.checked_add(limit));
        // D3: that of the call that it is part of, if that is over before.
        let inherited = Current::get().and_then(|current| current.deadline);
        Self {
            began,
            deadline: own.into_iter().chain(inherited).min(),
            failed: Vec::new(),
        }
    }

    /// How much of its time is left.
    fn left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Nobody has answered with it: who could not may have it.
    fn nothing<F>(self) -> Result<Option<F>> {
        let first = self.failed.into_iter().next();
        first.map_or(Ok(None), |(_, error)| Err(error))
    }

    /// Its time is up, because of that one. If somebody could not be asked, that is why.
    fn late(&mut self, peer: Arc<str>, function: FunctionName) -> Error {
        let limit = self.deadline.map(|at| at - self.began);
        let late = Error::Timeout {
            peer,
            function,
            limit: limit.unwrap_or_default(),
        };
        self.failed.pop().map_or(late, |(_, error)| error)
    }
}

/// A member that has been asked, and its answer.
struct Asked {
    life: NodeId,
    member: Peer,
    answer: Call<Answer>,
    /// It has come.
    came: Option<Result<Answer>>,
}

impl Asked {
    fn poll(&mut self, context: &mut Context<'_>) {
        if self.came.is_none()
            && let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(context)
        {
            self.came = Some(answer);
        }
    }
}

/// What comes next for who has asked all.
enum News {
    Answered(Box<Asked>, Result<Answer>),
    Event(Option<MemberEvent>),
}

fn poll_any(asked: &mut Vec<Asked>, members: &Members, context: &mut Context<'_>) -> Poll<News> {
    for index in 0..asked.len() {
        asked[index].poll(context);
        if let Some(answer) = asked[index].came.take() {
            let asked = Box::new(asked.remove(index));
            return Poll::Ready(News::Answered(asked, answer));
        }
    }
    members.poll_event(context).map(News::Event)
}
