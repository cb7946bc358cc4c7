//! `RRef<T>`: a far reference.

use std::any::type_name;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use farref_proto::Departure;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::api::peer::Peer;
use crate::codec::CodecError;
use crate::error::{Error, FunctionName, ReferenceError, Result};
use crate::fingerprint;
use crate::runtime::LOCAL;
use crate::runtime::callers;
use crate::runtime::current::Current;
use crate::runtime::handle::{Handle, Held};
use crate::runtime::value_scope::{self, Unread};
use crate::support::mutation::mutated;
use crate::values::queue::{ValueUser, WouldDeadlock};
use crate::values::sealed::ReceiverGuard;
use crate::values::{Access, Exclusive, Ref, RefMut, Shared};

/// The name under which codecs see a reference.
const NAME: &str = "farref::RRef";

/// A far reference: a value of type `T` that lives on some worker, for as long as anybody holds one.
///
/// It comes from [`Call::remote`](crate::Call::remote), [`Worker::rref`](crate::Worker::rref), or out of an argument or a
/// result, and can be put into arguments and results in turn, anywhere inside them. Methods of `T` that
/// are remote can be called on it. Cloning it is local and sends nothing; when the last clone on the
/// last worker is dropped, the value is.
///
/// ```
/// use farref::RRef;
///
/// #[farref::remote]
/// async fn length(text: RRef<String>) -> farref::Result<usize> {
///     Ok(text.to_here().await?.len())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let text = me.rref("far away".to_owned())?;
/// assert_eq!(length::on(&me.peer("worker1")?, text.clone()).await?, 8);
/// drop(text);
/// # cluster.shutdown().await
/// # }
/// ```
pub struct RRef<T> {
    pub(crate) handle: Arc<Handle>,
    value: PhantomData<fn() -> T>,
}

impl<T> RRef<T> {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        Self {
            handle,
            value: PhantomData,
        }
    }

    fn held(&self) -> Result<&Held> {
        self.handle.held()
    }

    /// The worker that has the value. An error if the reference leads nowhere.
    ///
    /// ```
    /// use farref::RRef;
    ///
    /// #[farref::remote]
    /// async fn load() -> String {
    ///     "data".to_owned()
    /// }
    ///
    /// #[farref::remote]
    /// async fn size(data: RRef<String>) -> farref::Result<usize> {
    ///     Ok(data.to_here().await?.len())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let data = load::on(&peer).remote();
    /// // Better where the data is.
    /// let at = data.owner()?;
    /// assert_eq!(at.name(), "worker1");
    /// assert_eq!(size::on(&at, data).await?, 4);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn owner(&self) -> Result<Peer> {
        let held = self.held()?;
        Ok(Peer::of(&held.core, held.owner))
    }

    /// Whether the value is on this worker.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn zero() -> u64 {
    ///     0
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let [here, there] = [me.rref(0_u64)?, zero::on(&peer).remote()];
    /// assert!(here.is_owner());
    /// assert!(!there.is_owner());
    /// # drop((here, there));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn is_owner(&self) -> bool {
        self.held().is_ok_and(|held| held.owner == held.core.me)
    }

    /// Waits until the owner has registered this reference. From then on it survives the death of
    /// whoever handed it over. Using a reference does not need this.
    ///
    /// The owner may know the reference before it knows of the value: if the worker that asks for the
    /// value dies in between, there never is one ([`Error::CreatorLost`]). Confirmed by that worker
    /// itself, it is safe from this too.
    ///
    /// ```
    /// use farref::{RRef, Worker};
    ///
    /// #[farref::remote]
    /// async fn make() -> farref::Result<RRef<String>> {
    ///     let owner = Worker::current().expect("inside of a remote function").peer("worker2")?;
    ///     let text = text::on(&owner).remote();
    ///     text.confirmed().await?; // the owner knows of the value
    ///     Ok(text)
    /// }
    ///
    /// #[farref::remote]
    /// async fn text() -> String {
    ///     "survives".to_owned()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(3).await?;
    /// let broker = cluster.worker(0).peer("worker1")?;
    ///
    /// let text = make::on(&broker).await?;
    /// text.confirmed().await?; // the owner knows that it is held here
    /// cluster.crash(1).await; // whoever handed it over is gone
    /// assert_eq!(text.to_here().await?, "survives");
    /// # drop(text);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn confirmed(&self) -> Result<()> {
        let held = self.held()?;
        let confirmation = held
            .core
            .confirmation(held.rref)
            .map_err(|error| held.core.explain(error))?;
        match confirmation {
            None => Ok(()),
            Some(waiting) => match waiting.await {
                Ok(confirmed) => confirmed.map_err(|error| held.core.explain(error)),
                Err(_) => Err(held.core.not_member()),
            },
        }
    }

    /// Ends when the worker is gone that has the value, and says whether it left or died: from then on the reference
    /// leads nowhere ([`Error::OwnerLost`]). It does not use the value, and does not keep it.
    ///
    /// An error if this worker itself ends before, or if the reference leads nowhere by itself.
    ///
    /// ```
    /// use farref::{Departure, Error};
    ///
    /// #[farref::remote]
    /// async fn load() -> String {
    ///     "data".to_owned()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let data = load::on(&me.peer("worker1")?).remote();
    /// let gone = tokio::spawn(data.owner_gone());
    ///
    /// cluster.crash(1).await;
    /// assert_eq!(gone.await.expect("no panic")?, Departure::Died);
    /// assert!(matches!(data.to_here().await, Err(Error::OwnerLost { .. })));
    /// # drop(data);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn owner_gone(&self) -> impl Future<Output = Result<Departure>> + Send + use<T> {
        let gone = self.held().map(|held| held.core.gone(held.owner));
        async { gone?.await }
    }

    /// A text that tells this reference from all others in the group.
    ///
    /// ```
    /// use farref::RRef;
    ///
    /// #[farref::remote]
    /// async fn id_of(value: RRef<u64>) -> farref::Result<String> {
    ///     value.id()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let value = me.rref(7_u64)?;
    /// assert_eq!(id_of::on(&peer, value.clone()).await?, value.id()?);
    /// assert_ne!(me.rref(7_u64)?.id()?, value.id()?);
    /// # drop(value);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn id(&self) -> Result<String> {
        self.held().map(|held| held.rref.to_string())
    }
}

impl<T> RRef<T> {
    /// The same reference, to a value of another type. Only where another system made the value and nothing is
    /// known of its type here: then it shows when it is used whether that is right.
    ///
    /// ```
    /// use farref::Error;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(1).await?;
    /// let number = cluster.worker(0).rref(7_u64)?;
    /// assert!(number.cast::<u64>().is_ok());
    /// assert!(matches!(number.cast::<String>(), Err(Error::TypeMismatch(_))));
    /// # drop(number);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn cast<U: 'static>(&self) -> Result<RRef<U>> {
        let held = self.held()?;
        if !held.fingerprint.agrees(fingerprint::of_type::<U>()) {
            let found = held.core.type_name(held.fingerprint);
            return Err(Error::TypeMismatch(format!(
                "a reference to `{}` leads to {found}: cast it to the type that the value has",
                type_name::<U>()
            )));
        }
        Ok(RRef::new(Arc::clone(&self.handle)))
    }
}

impl<T: Send + Sync + 'static> RRef<T> {
    /// Looks at the value, on the worker that has it. Waits for its constructor and for methods with
    /// `&mut self` that came before.
    ///
    /// ```
    /// use farref::Error;
    ///
    /// #[farref::remote]
    /// async fn list() -> Vec<u32> {
    ///     vec![1, 2, 3]
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let here = list::on(&me.me()).remote();
    /// assert_eq!(here.local().await?.len(), 3); // not copied
    ///
    /// let there = list::on(&peer).remote();
    /// assert!(matches!(there.local().await, Err(Error::NotOwner { .. })));
    /// # drop((here, there));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn local(&self) -> Result<Ref<T>> {
        self.enter::<Shared<T>>().await
    }

    /// Changes the value, on the worker that has it. Waits for its constructor and for all uses of it
    /// that came before.
    ///
    /// ```
    /// use farref::RRef;
    ///
    /// #[farref::remote]
    /// async fn sum(list: RRef<Vec<u32>>) -> farref::Result<u32> {
    ///     Ok(list.to_here().await?.iter().sum())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let list = me.rref(vec![1, 2, 3])?;
    /// list.local_mut().await?.push(4);
    /// assert_eq!(sum::on(&peer, list.clone()).await?, 10);
    /// # drop(list);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn local_mut(&self) -> Result<RefMut<T>> {
        self.enter::<Exclusive<T>>().await
    }

    async fn enter<A: Access<Target = T>>(&self) -> Result<A::Guard> {
        let held = self.held()?;
        let core = &held.core;
        if held.owner != core.me {
            return Err(Error::NotOwner {
                owner: core.name_of(held.owner),
            });
        }
        let value = match core.local(held.rref, held.fingerprint).await {
            Ok(value) => value.map_err(|error| core.explain(error))?,
            Err(_) => return Err(core.not_member()),
        };
        let current = Current::get().filter(|current| Arc::ptr_eq(&current.core, core));
        let callers = current.map_or_else(Vec::new, |current| current.chain.callers());
        let user = ValueUser {
            exclusive: A::EXCLUSIVE,
            function: LOCAL,
            caller: core.me,
            caller_uses: callers::use_of(&callers, held.rref),
        };
        let ticket = value
            .into_ticket(&core.queues, held.rref, user)
            .map_err(|WouldDeadlock| Error::Deadlock {
                peer: Arc::clone(&core.name),
                function: FunctionName::ours(LOCAL),
                cycle: callers::cycle(&callers, held.rref, LOCAL, |id| core.registry.name_of(id)),
            })?;
        let receiver = ticket.wait().await.map_err(|failure| {
            let function = FunctionName::ours(LOCAL);
            crate::runtime::failure::to_error(core, core.me, function, failure)
        })?;
        A::enter(ReceiverGuard(Some(receiver)))
            .ok_or_else(|| Error::TypeMismatch(mismatch::<T>("another type")))
    }
}

fn mismatch<T>(found: &str) -> String {
    format!(
        "a reference to `{}` leads to {found}: build all workers from the same source",
        type_name::<T>()
    )
}

impl<T> Clone for RRef<T> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.handle))
    }
}

/// References of one worker are equal if they lead to the same value of the same life of its owner, however they got
/// there. One that leads nowhere, because its call could not be made, is equal to its clones only. Those of two workers
/// of one process are never equal: compare them where they are sent to. What is compared and hashed never changes, so
/// Clippy's `mutable_key_type` may be allowed where references are keys.
///
/// ```
/// use std::collections::HashSet;
///
/// use farref::RRef;
///
/// #[farref::remote]
/// async fn hand_back(text: RRef<String>) -> RRef<String> {
///     text
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// let [one, other] = [me.rref("text".to_owned())?, me.rref("text".to_owned())?];
/// assert_ne!(one, other); // two values, though equal ones
/// assert_eq!(hand_back::on(&peer, one.clone()).await?, one);
///
/// let known = HashSet::from([one.clone(), other]);
/// assert!(known.contains(&one));
/// # drop((one, known));
/// # cluster.shutdown().await
/// # }
/// ```
impl<T> PartialEq for RRef<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&*self.handle, &*other.handle) {
            (Handle::Held(one), Handle::Held(other)) => {
                one.rref == other.rref
                    && one.owner == other.owner
                    && Arc::ptr_eq(&one.core, &other.core)
            }
            _ => Arc::ptr_eq(&self.handle, &other.handle),
        }
    }
}

impl<T> Eq for RRef<T> {}

impl<T> Hash for RRef<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &*self.handle {
            Handle::Held(held) => held.rref.hash(state),
            Handle::Broken(_) => Arc::as_ptr(&self.handle).hash(state),
        }
    }
}

impl<T> fmt::Debug for RRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RRef<{}>({:?})", type_name::<T>(), self.handle)
    }
}

impl<T> Serialize for RRef<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = value_scope::carry(&self.handle).map_err(serde::ser::Error::custom)?;
        serializer.serialize_newtype_struct(NAME, &index)
    }
}

impl<'de, T: 'static> Deserialize<'de> for RRef<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = HandleVisitor {
            type_name: type_name::<T>(),
            check: check::<T>,
        };
        let handle = deserializer.deserialize_newtype_struct(NAME, visitor)?;
        Ok(Self::new(handle))
    }
}

/// Reads a reference of this type, if it passes this check.
struct HandleVisitor {
    type_name: &'static str,
    check: fn(&Handle) -> Result<(), Unread>,
}

impl<'de> Visitor<'de> for HandleVisitor {
    type Value = Arc<Handle>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a reference to {}", self.type_name)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Arc<Handle>, D::Error> {
        let index = u32::deserialize(deserializer)?;
        value_scope::carried(index, self.check).map_err(D::Error::custom)
    }

    /// No codec writes a reference as nothing. Whoever traces the shape of a type can have a
    /// hollow one, so that it sees what comes after it.
    fn visit_unit<E>(self) -> Result<Arc<Handle>, E> {
        let hollow = Error::from(ReferenceError::Hollow);
        Ok(Handle::broken(hollow))
    }
}

/// A reference that is read before it is known what it leads to.
pub(super) struct UntypedRRef(Arc<Handle>);

impl UntypedRRef {
    pub(super) fn new(handle: Arc<Handle>) -> Self {
        Self(handle)
    }

    /// The reference, if it leads to such a value; otherwise what it leads to.
    pub(super) fn typed<T: 'static>(self) -> Result<RRef<T>, String> {
        match check::<T>(&self.0) {
            Ok(()) => Ok(RRef::new(self.0)),
            Err(_) => Err(match self.0.held() {
                Ok(held) => held.core.type_name(held.fingerprint),
                Err(error) => error.to_string(),
            }),
        }
    }
}

impl Serialize for UntypedRRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = value_scope::carry(&self.0).map_err(serde::ser::Error::custom)?;
        serializer.serialize_newtype_struct(NAME, &index)
    }
}

impl<'de> Deserialize<'de> for UntypedRRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = HandleVisitor {
            type_name: "any type",
            check: |_| Ok(()),
        };
        let handle = deserializer.deserialize_newtype_struct(NAME, visitor)?;
        Ok(Self(handle))
    }
}

/// R8: a reference is read only as what it is.
fn check<T: 'static>(handle: &Handle) -> Result<(), Unread> {
    let held = handle.held().map_err(CodecError::new)?;
    let expected = fingerprint::of_type::<T>();
    if !held.fingerprint.agrees(expected) && !mutated!(AnyType) {
        let found = held.core.type_name(held.fingerprint);
        return Err(Unread::Mismatch(mismatch::<T>(&found)));
    }
    // HO-2
    if held.fingerprint == expected {
        held.core.name_type(expected, type_name::<T>());
    }
    Ok(())
}
