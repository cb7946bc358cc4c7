//! R8: two builds that disagree about a function or a type find out at the first call.
//!
//! One program cannot be two builds. So a wire of channels changes what the caller says it believes,
//! and the callee reacts as it would to another build.

use std::sync::atomic::{AtomicU64, Ordering};

use farref::agent::CallMessage;
use farref::{Error, RRef, Worker};
use farref_proto::{Fingerprint, Target};

use crate::channels;

struct Counter(u64);

#[farref::remote]
impl Counter {
    pub(crate) fn new(start: u64) -> Self {
        Self(start)
    }

    pub(crate) async fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

#[farref::remote]
async fn read_through(text: RRef<String>, times: u32) -> farref::Result<String> {
    Ok(text.to_here().await?.repeat(times as usize))
}

/// What happens to a call on its way.
type Tamper = fn(&mut CallMessage);

fn another_signature(call: &mut CallMessage) {
    if let Some(function) = &mut call.function {
        function.signature = Fingerprint(function.signature.0 ^ 1);
    }
}

fn another_function(call: &mut CallMessage) {
    if let Some(function) = &mut call.function {
        function.id ^= 1;
    }
}

/// The caller believes that the value is of another type.
fn another_type(call: &mut CallMessage) {
    if let Target::Fetch(.., fingerprint) = &mut call.head.target {
        fingerprint.0 ^= 1;
    }
}

/// Two workers, the first of which is of another build.
async fn group(tamper: Tamper) -> anyhow::Result<[Worker; 2]> {
    let other_build = channels::End {
        tamper,
        ..Default::default()
    };
    channels::group([other_build, channels::End::default()]).await
}

/// R8
#[tokio::test]
async fn a_function_with_another_signature_is_an_error_that_names_both() -> anyhow::Result<()> {
    let workers = group(another_signature).await?;
    let peer = workers[0].peer("w1")?;
    let text = workers[0].rref("text".to_owned())?;
    let called = read_through::on(&peer, text.clone(), 2).await;
    let Err(error) = called else {
        panic!("{called:?}");
    };
    let Error::SignatureMismatch {
        peer: who,
        function,
        ours,
        theirs,
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (&**who, function.as_str().ends_with("read_through")),
        ("w1", true)
    );
    let [one, other] = [ours, theirs].map(ToString::to_string);
    assert!(one.contains("u32") && other.contains("u32"), "{error}");

    // What stays there says so when it is used.
    let there = read_through::on(&peer, text.clone(), 2).remote();
    let used = there.to_here().await;
    let Err(error) = &used else {
        panic!("{used:?}");
    };
    let Error::SignatureMismatch {
        peer: who,
        function,
        ours: believed,
        theirs: found,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (&**who, function.as_str().ends_with("read_through")),
        ("w1", true),
        "{error}"
    );
    assert_eq!((believed, found), (ours, theirs));
    drop((text, there));
    channels::end(workers).await
}

mod near {
    #[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
    pub(crate) struct Point {
        pub(crate) x: f32,
    }

    #[farref::remote]
    pub(crate) async fn shift(point: Point, by: f32) -> Point {
        Point { x: point.x + by }
    }

    #[farref::remote]
    pub(crate) async fn origin() -> Point {
        Point { x: 0.0 }
    }
}

mod far {
    #[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
    pub(crate) struct Point {
        pub(crate) x: f32,
    }

    #[farref::remote]
    pub(crate) async fn shift(point: Point, by: f32) -> Point {
        Point { x: point.x + by }
    }

    #[farref::remote]
    pub(crate) async fn origin() -> Point {
        Point { x: 1.0 }
    }
}

/// The first call is noted; the others go where it went.
fn as_another_program_has_it(call: &mut CallMessage) {
    static FIRST: AtomicU64 = AtomicU64::new(0);
    if let Some(function) = &mut call.function {
        let first = FIRST.fetch_or(function.id, Ordering::Relaxed);
        if first != 0 {
            function.id = first;
        }
    }
}

/// R8: two programs with a struct of the same source each. The declarations read alike, so the error has
/// the paths.
#[tokio::test]
async fn types_that_are_called_alike_are_named_with_their_paths() -> anyhow::Result<()> {
    let workers = group(as_another_program_has_it).await?;
    let peer = workers[0].peer("w1")?;
    let point = far::Point { x: 1.0 };
    assert_eq!(far::shift::on(&peer, point, 1.0).await?.x, 2.0);
    let called = near::shift::on(&peer, near::Point { x: 1.0 }, 1.0).await;
    let Err(error @ Error::SignatureMismatch { ours, theirs, .. }) = &called else {
        panic!("{called:?}");
    };
    assert_eq!(ours.to_string(), theirs.to_string());
    let text = error.to_string();
    for part in ["near::Point` here", "far::Point` there", "`w1`"] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    channels::end(workers).await
}

/// The caller takes what it gets for its own type of that name.
fn of_its_own_type(call: &mut CallMessage) {
    if let Target::Fetch(.., fingerprint) = &mut call.head.target {
        *fingerprint = Fingerprint(NEAR.load(Ordering::Relaxed));
    }
}

static NEAR: AtomicU64 = AtomicU64::new(0);

fn note_type(call: &mut CallMessage) {
    if let Target::Fetch(.., fingerprint) = &call.head.target {
        NEAR.store(fingerprint.0, Ordering::Relaxed);
    }
}

/// R8: the same of a value, which is called on its owner what only its owner knows.
#[tokio::test]
async fn a_value_of_a_type_that_is_called_alike_is_named_with_its_path() -> anyhow::Result<()> {
    let workers = group(note_type).await?;
    let there = near::origin::on(&workers[0].peer("w1")?).remote();
    assert_eq!(there.to_here().await?.x, 0.0);
    drop(there);
    channels::end(workers).await?;

    let workers = group(of_its_own_type).await?;
    let there = far::origin::on(&workers[0].peer("w1")?).remote();
    let used = there.to_here().await;
    let Err(Error::TypeMismatch(text)) = &used else {
        panic!("{used:?}");
    };
    for part in ["near::Point`", "far::Point`", "`w0`", "`w1`"] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    drop(there);
    channels::end(workers).await
}

/// R8
#[tokio::test]
async fn a_function_that_the_callee_lacks_is_an_error_that_names_it() -> anyhow::Result<()> {
    let workers = group(another_function).await?;
    let peer = workers[0].peer("w1")?;
    let text = workers[0].rref("text".to_owned())?;
    let called = read_through::on(&peer, text.clone(), 2).await;
    let Err(Error::NoSuchFunction {
        peer: who,
        function,
        ..
    }) = &called
    else {
        panic!("{called:?}");
    };
    assert_eq!(
        (&**who, function.as_str().ends_with("read_through")),
        ("w1", true)
    );
    // What stays there says so when it is used, and not of the use.
    let there = read_through::on(&peer, text.clone(), 2).remote();
    let used = there.to_here().await;
    let Err(Error::NoSuchFunction {
        peer: who,
        function,
        ..
    }) = &used
    else {
        panic!("{used:?}");
    };
    assert_eq!((&**who, function.as_str() == "to_here"), ("w1", false));
    drop((text, there));
    channels::end(workers).await
}

/// R8
#[tokio::test]
async fn a_value_of_another_type_is_an_error_that_names_both() -> anyhow::Result<()> {
    let workers = group(another_type).await?;
    let peer = workers[0].peer("w1")?;
    let counter = Counter::new_on(&peer, 1).remote();
    for waits_for_the_value in [true, false] {
        let used = counter.add(1).await;
        let Err(Error::TypeMismatch(text)) = &used else {
            panic!("{waits_for_the_value}: {used:?}");
        };
        assert!(text.contains("Counter"), "{text}");
    }
    drop(counter);
    channels::end(workers).await
}
