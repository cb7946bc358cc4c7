//! Values that stay with their owner, and who may use them when.
//!
//! Whoever wants to use a value draws a [`ValueTicket`], which is its place in the value's queue, and waits for a
//! [`ValueGuard`]: the queue's [permit](QueuePermit), and the value that it opens.
//!
//! # Invariants
//!
//! - **VA-1** Calls on one value are let in in the order of their [`ValueTicket`]s: those with `&mut self`
//!   one at a time, those with `&self` in parallel between them. The [`queue`] decides; a value is shared by those
//!   with `&self`, and taken out of its cell by the one with `&mut self`.
//! - **VA-2** A ticket that is dropped lets the next ones in.
//! - **VA-3** A value whose destructor lets other values go is dropped before them, not around them: how
//!   long a chain of values is that hold references to each other is up to whoever made it, and the
//!   stack is not.
//! - **VA-4** A destructor that panics harms nobody: not the thread that happens to run it, nor the
//!   values that go with it.

pub(crate) mod queue;

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use farref_proto::RRefId;

use self::queue::{QueuePermit, QueueTicket, Queues, ValueUser, WouldDeadlock};

use crate::agent::Failure;
use crate::codec::vectors::Outgoing;
use crate::codec::{Codec, CodecError};
use crate::support::lock::lock;

/// Writes a value.
pub type Encode<T> = fn(Outgoing<'_, T>, &Codec) -> Result<Vec<u8>, CodecError>;

/// What the reference table keeps for an owned value.
#[derive(Clone)]
pub(crate) enum Value {
    /// The value.
    Ready(Arc<dyn Object>),
    /// It could not be made.
    Failed(Arc<Failure>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Value::Ready",
            Self::Failed(_) => "Value::Failed",
        })
    }
}

impl Value {
    pub(crate) fn new<T: Send + Sync + 'static>(value: T, encode: Option<Encode<T>>) -> Self {
        Self::Ready(Arc::new(Cell {
            value: Mutex::new(Some(Arc::new(value))),
            encode,
        }))
    }

    /// Whether code of the program may run when it is dropped.
    pub(crate) fn has_destructor(&self) -> bool {
        match self {
            Self::Ready(object) => object.has_destructor(),
            Self::Failed(_) => false,
        }
    }

    pub(crate) fn failed(failure: Failure) -> Self {
        Self::Failed(Arc::new(failure))
    }

    /// Takes a place in the queue of those who want to use the value (VA-1), which is called `rref`.
    pub(crate) fn into_ticket(
        self,
        queues: &Arc<Queues>,
        rref: RRefId,
        user: ValueUser,
    ) -> Result<ValueTicket, WouldDeadlock> {
        let object = match self {
            Self::Failed(failure) => return Ok(ValueTicket::Failed(failure)),
            Self::Ready(object) => object,
        };
        Ok(ValueTicket::Queued {
            object,
            exclusive: user.exclusive,
            ticket: queues.draw(rref, user)?,
        })
    }
}

/// A value whose type is forgotten.
pub(crate) trait Object: Send + Sync {
    /// Writes the value, if its type can be written.
    fn encode(&self, codec: &Codec) -> Option<Result<Vec<u8>, CodecError>>;
    /// The type of the value.
    fn type_name(&self) -> &'static str;
    /// The type of the value. (Not `type_id`, which everything has, also an `Arc` of this.)
    fn value_type(&self) -> TypeId;
    /// Whether code of the program may run when the value is dropped.
    fn has_destructor(&self) -> bool;
    /// Itself, for those who know the type.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Where a value is kept.
struct Cell<T: Send + Sync + 'static> {
    /// There until the cell is dropped, but for as long as somebody has it exclusively. Those who have a permit to
    /// share it have it too.
    value: Mutex<Option<Arc<T>>>,
    encode: Option<Encode<T>>,
}

impl<T: Send + Sync + 'static> Cell<T> {
    fn shared(&self) -> Option<Arc<T>> {
        lock(&self.value).clone()
    }
}

impl<T: Send + Sync + 'static> Object for Cell<T> {
    fn encode(&self, codec: &Codec) -> Option<Result<Vec<u8>, CodecError>> {
        let value = self.shared()?;
        self.encode
            .map(|encode| encode(Outgoing::Kept(&value), codec))
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }

    fn value_type(&self) -> TypeId {
        TypeId::of::<T>()
    }

    fn has_destructor(&self) -> bool {
        std::mem::needs_drop::<T>()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// VA-3, VA-4
impl<T: Send + Sync + 'static> Drop for Cell<T> {
    fn drop(&mut self) {
        let value = self.value.get_mut();
        if std::mem::needs_drop::<T>()
            && let Some(value) = value.unwrap_or_else(PoisonError::into_inner).take()
        {
            drop_iteratively(value);
        }
    }
}

thread_local! {
    /// Values that are to go after the one that this thread is letting go of.
    static GOING: RefCell<Option<Vec<Going>>> = const { RefCell::new(None) };
}

/// A value that is to go, and its type.
type Going = (Box<dyn Send>, &'static str);

fn drop_iteratively<T: Send + Sync + 'static>(value: Arc<T>) {
    let name = std::any::type_name::<T>();
    let mut value = Some(value);
    // Without its local state a thread is about to end, and does without the care.
    let first = GOING.try_with(|going| match &mut *going.borrow_mut() {
        Some(going) => {
            let value = value.take().map(|value| (Box::new(value) as _, name));
            going.extend(value);
            false
        }
        going @ None => {
            *going = Some(Vec::new());
            true
        }
    });
    drop_safely(value, name);
    if first == Ok(true) {
        while let Some((next, name)) = GOING.with_borrow_mut(|going| going.as_mut()?.pop()) {
            drop_safely(next, name);
        }
        GOING.set(None);
    }
}

fn drop_safely<T>(value: T, name: &'static str) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!(value = name, "a value panicked when it was dropped");
    }
}

/// A place in the queue of one value, to be waited for.
pub(crate) enum ValueTicket {
    Queued {
        object: Arc<dyn Object>,
        exclusive: bool,
        ticket: QueueTicket,
    },
    /// There is no value.
    Failed(Arc<Failure>),
}

impl fmt::Debug for ValueTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ValueTicket")
    }
}

/// A value that may be used, and the permit for it. (The value is given back before the permit, so that whoever gets
/// the next permit finds it.)
pub(crate) enum ValueGuard {
    Shared(Arc<dyn Object>, QueuePermit),
    Exclusive(Arc<dyn Object>, QueuePermit),
}

impl ValueTicket {
    /// Waits until it is this ticket's turn.
    pub(crate) async fn wait(self) -> Result<ValueGuard, Failure> {
        let (object, exclusive, ticket) = match self {
            Self::Failed(failure) => return Err(Failure::clone(&failure)),
            Self::Queued {
                object,
                exclusive,
                ticket,
            } => (object, exclusive, ticket),
        };
        let permit = ticket.wait().await.ok_or(Failure::Cancelled)?;
        Ok(if exclusive {
            ValueGuard::Exclusive(object, permit)
        } else {
            ValueGuard::Shared(object, permit)
        })
    }

    /// What the queue calls it, if it has to wait.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Queued { ticket, .. } => ticket.number(),
            Self::Failed(_) => None,
        }
    }
}

/// How a function uses the value that it is called on.
pub trait Access: sealed::Sealed + 'static {
    /// The type of the value.
    type Target: Send + Sync + 'static;
    /// What the function gets.
    type Guard: Send + 'static;
    /// Whether there is a value at all.
    const NEEDS_RECEIVER: bool;
    /// Whether it must be the only one.
    const EXCLUSIVE: bool;

    /// Turns the guard of some value into one of a value of this type.
    #[doc(hidden)]
    fn enter(receiver: sealed::ReceiverGuard) -> Option<Self::Guard>;
}

pub mod sealed {
    //! What only this crate can make or implement.
    /// Keeps users from inventing kinds of access.
    pub trait Sealed {}

    /// The guard of the value that a function is called on, if it is called on one.
    pub struct ReceiverGuard(pub(crate) Option<super::ValueGuard>);

    impl std::fmt::Debug for ReceiverGuard {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("ReceiverGuard")
        }
    }
}

/// A free function: there is no value.
#[derive(Debug)]
pub struct NoReceiver;

impl sealed::Sealed for NoReceiver {}

impl Access for NoReceiver {
    type Target = ();
    type Guard = ();
    const NEEDS_RECEIVER: bool = false;
    const EXCLUSIVE: bool = false;

    fn enter(_: sealed::ReceiverGuard) -> Option<()> {
        Some(())
    }
}

/// A method with `&self`.
#[derive(Debug)]
pub struct Shared<T>(std::marker::PhantomData<T>);

impl<T> sealed::Sealed for Shared<T> {}

impl<T: Send + Sync + 'static> Access for Shared<T> {
    type Target = T;
    type Guard = Ref<T>;
    const NEEDS_RECEIVER: bool = true;
    const EXCLUSIVE: bool = false;

    fn enter(receiver: sealed::ReceiverGuard) -> Option<Ref<T>> {
        let Some(ValueGuard::Shared(object, permit)) = receiver.0 else {
            return None;
        };
        let cell = object.into_any().downcast::<Cell<T>>().ok()?;
        Some(Ref {
            value: cell.shared()?,
            _cell: cell,
            _permit: permit,
        })
    }
}

/// A method with `&mut self`.
#[derive(Debug)]
pub struct Exclusive<T>(std::marker::PhantomData<T>);

impl<T> sealed::Sealed for Exclusive<T> {}

impl<T: Send + Sync + 'static> Access for Exclusive<T> {
    type Target = T;
    type Guard = RefMut<T>;
    const NEEDS_RECEIVER: bool = true;
    const EXCLUSIVE: bool = true;

    fn enter(receiver: sealed::ReceiverGuard) -> Option<RefMut<T>> {
        let Some(ValueGuard::Exclusive(object, permit)) = receiver.0 else {
            return None;
        };
        let cell = object.into_any().downcast::<Cell<T>>().ok()?;
        let value = lock(&cell.value).take();
        debug_assert!(value.is_some(), "somebody else has it exclusively (VA-1)");
        let value = value?;
        Some(RefMut {
            value: Taken { value, cell },
            _permit: permit,
        })
    }
}

/// Reads a value that lives on this worker. While it exists, methods with `&mut self` wait.
///
/// ```
/// use farref::Ref;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let cluster = farref::testing::Cluster::start(1).await?;
/// # let me = cluster.worker(0);
/// let text = me.rref("one two".to_owned())?;
///
/// // Any number of them at a time, as with a read lock.
/// let first: Ref<String> = text.local().await?;
/// let second: Ref<String> = text.local().await?;
/// assert_eq!(first.split(' ').count(), 2);
/// assert_eq!(*first, *second);
/// # drop((first, second, text));
/// # cluster.shutdown().await
/// # }
/// ```
pub struct Ref<T> {
    value: Arc<T>,
    /// Dropped after the value, so that it is the cell that drops that (VA-3).
    _cell: Arc<dyn Any + Send + Sync>,
    /// Dropped last.
    _permit: QueuePermit,
}

impl<T> std::ops::Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Changes a value that lives on this worker. While it exists, all other uses wait.
///
/// ```
/// use farref::RefMut;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let cluster = farref::testing::Cluster::start(1).await?;
/// # let me = cluster.worker(0);
/// let list = me.rref(vec![3, 1, 2])?;
///
/// let mut only: RefMut<Vec<i32>> = list.local_mut().await?;
/// only.sort();
/// drop(only); // let the others in
///
/// assert_eq!(list.to_here().await?, [1, 2, 3]);
/// # drop(list);
/// # cluster.shutdown().await
/// # }
/// ```
pub struct RefMut<T> {
    value: Taken<T>,
    /// Dropped last.
    _permit: QueuePermit,
}

/// A value that was taken out of its cell, and is put back when this is dropped. Nobody else has it.
struct Taken<T> {
    value: Arc<T>,
    cell: Arc<dyn Home<T>>,
}

/// Where a value belongs.
trait Home<T>: Send + Sync {
    fn put_back(&self, value: Arc<T>);
}

impl<T: Send + Sync + 'static> Home<T> for Cell<T> {
    fn put_back(&self, value: Arc<T>) {
        *lock(&self.value) = Some(value);
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        self.cell.put_back(Arc::clone(&self.value));
    }
}

impl<T> std::ops::Deref for RefMut<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value.value
    }
}

impl<T> std::ops::DerefMut for RefMut<T> {
    fn deref_mut(&mut self) -> &mut T {
        match Arc::get_mut(&mut self.value.value) {
            Some(value) => value,
            // It was out of its cell, where others would have got it, and those before have given it back (VA-1).
            None => unreachable!("a value is used by others while it is used exclusively"),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for RefMut<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
