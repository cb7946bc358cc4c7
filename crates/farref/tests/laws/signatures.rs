//! R8: two builds that disagree about a function or a type find out at the first call.
//!
//! One program cannot be two builds. So a wire of channels changes what the caller says it believes,
//! and the callee reacts as it would to another build.

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
    assert!(ours.contains("u32") && theirs.contains("u32"), "{error}");

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
