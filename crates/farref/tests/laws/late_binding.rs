//! What other systems call functions: names in Python, methods by their name on a value of whatever type,
//! references to values whose type only the other system knows.

use std::sync::Mutex;
use std::time::Duration;

use farref::agent::{CallMessage, Fingerprint, FunctionRef};
use farref::context::ContextScope;
use farref::functions::Functions;
use farref::testing::Cluster;
use farref::{Error, RRef};
use farref_testkit::TEST_TIMEOUT;

use crate::channels::{self, End};

struct Till(u64);

#[farref::remote(python = "shop.Till")]
impl Till {
    pub(crate) fn new(start: u64) -> Self {
        Self(start)
    }

    pub(crate) async fn opened_late(start: u64) -> Result<Self, String> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if start == 0 {
            return Err("an empty till".to_owned());
        }
        Ok(Self(start))
    }

    pub(crate) async fn put(&mut self, coins: u64) -> u64 {
        self.0 += coins;
        self.0
    }

    #[remote(python = "shop.Till.__len__")]
    pub(crate) async fn count(&self) -> u64 {
        self.0
    }
}

struct Purse(String);

#[farref::remote(name = "purse")]
impl Purse {
    pub(crate) fn made_of(material: String) -> Self {
        Self(material)
    }

    pub(crate) async fn put(&self, coins: u64) -> String {
        format!("{coins} coins in {}", self.0)
    }
}

#[farref::remote(python = "shop.greet")]
async fn greet(name: String) -> String {
    format!("hello {name}")
}

fn functions() -> Functions {
    Functions::of_program().unwrap()
}

/// Python calls a class to make an object, and its functions by the name of the class and theirs.
#[test]
fn functions_are_found_by_their_names_in_python() {
    let in_rust = |name: &str| {
        let found = functions().by_foreign_name(name)?;
        assert_eq!(found.foreign_name, Some(name));
        found.name.rsplit("::").next()
    };
    assert_eq!(in_rust("shop.greet"), Some("greet"));
    assert_eq!(in_rust("shop.Till"), Some("new"));
    assert_eq!(in_rust("shop.Till.opened_late"), Some("opened_late"));
    assert_eq!(in_rust("shop.Till.put"), Some("put"));
    assert_eq!(in_rust("shop.Till.__len__"), Some("count"));
    for other in [
        "shop.Till.new",
        "shop.Till.count",
        "greet",
        "purse::put",
        "",
    ] {
        assert!(functions().by_foreign_name(other).is_none(), "{other}");
    }
    let put = functions().by_name("purse::put").unwrap();
    assert!(put.is_method && put.foreign_name.is_none());
}

/// Names the method of a call by what it is called on its value, and by nothing else.
fn by_method(call: &mut CallMessage) {
    let Some(function) = &mut call.function else {
        return;
    };
    let info = functions().by_id(function.id).unwrap();
    if info.is_method {
        let name = match info.name.rsplit("::").next().unwrap() {
            "count" => "__len__",
            name => name,
        };
        *function = FunctionRef {
            on_first_reference: function.on_first_reference,
            ..functions().method(name)
        };
    }
}

/// The same with a name that no type has.
fn by_no_method(call: &mut CallMessage) {
    by_method(call);
    if let Some(function) = &mut call.function
        && functions().by_id(function.id).is_none()
    {
        function.id = functions().method("nothing_of_the_kind").id;
    }
}

fn tampered(tamper: fn(&mut CallMessage)) -> [End; 2] {
    let end = End {
        tamper,
        ..End::default()
    };
    [end, End::default()]
}

/// Two types have a method of one name: it is that of the value's own type, be the value there already or
/// not, for results that come back and for those that stay.
#[tokio::test]
async fn a_method_is_that_of_the_values_type() -> anyhow::Result<()> {
    let [a, b] = channels::group(tampered(by_method)).await?;
    let peer = a.peer("w1")?;
    let late = Till::opened_late_on(&peer, 1).remote();
    assert_eq!(late.put(2).await?, 3, "it waits for the value");
    let later = Till::opened_late_on(&peer, 10).remote();
    let sum = later.put(2).remote();
    assert_eq!(sum.to_here().await?, 12);
    assert_eq!(later.count().await?, 12, "by its name in Python");
    let purse = Purse::made_of_on(&peer, "leather".to_owned()).remote();
    assert_eq!(purse.put(2).await?, "2 coins in leather");
    let text = purse.put(3).remote();
    assert_eq!(text.to_here().await?, "3 coins in leather");
    drop((late, later, sum, purse, text));
    channels::end([a, b]).await
}

#[tokio::test]
async fn a_method_that_the_type_does_not_have_is_no_function() -> anyhow::Result<()> {
    let [a, b] = channels::group(tampered(by_no_method)).await?;
    let peer = a.peer("w1")?;
    for till in [
        Till::new_on(&peer, 1).remote(),
        Till::opened_late_on(&peer, 1).remote(),
    ] {
        let error = till.put(2).await.unwrap_err();
        assert!(matches!(error, Error::NoSuchFunction { .. }), "{error:?}");
        let stays = till.put(2).remote();
        let error = stays.to_here().await.unwrap_err();
        assert!(matches!(error, Error::NoSuchFunction { .. }), "{error:?}");
    }
    channels::end([a, b]).await
}

/// The name of another type's method is no name here.
#[tokio::test]
async fn a_method_of_another_type_is_no_function() -> anyhow::Result<()> {
    fn count(call: &mut CallMessage) {
        by_method(call);
        if let Some(function) = &mut call.function
            && functions().by_id(function.id).is_none()
        {
            function.id = functions().method("__len__").id;
        }
    }
    let [a, b] = channels::group(tampered(count)).await?;
    let purse = Purse::made_of_on(&a.peer("w1")?, "felt".to_owned()).remote();
    let error = purse.put(1).await.unwrap_err();
    assert!(matches!(error, Error::NoSuchFunction { .. }), "{error:?}");
    drop(purse);
    channels::end([a, b]).await
}

/// A value that could not be made fails as its constructor did, whatever names the method.
#[tokio::test]
async fn a_method_of_a_failed_value_fails_as_the_value_did() -> anyhow::Result<()> {
    let mut errors = Vec::new();
    for tamper in [|_: &mut CallMessage| {}, by_method, by_no_method] {
        let [a, b] = channels::group(tampered(tamper)).await?;
        let peer = a.peer("w1")?;
        let failed = Till::opened_late_on(&peer, 0).remote();
        let early = failed.put(1).await.unwrap_err().to_string();
        let late = failed.put(1).await.unwrap_err().to_string();
        let stays = failed.put(1).remote().to_here().await.unwrap_err();
        assert!(early.contains("an empty till"), "{early}");
        errors.push([early, late, stays.to_string()]);
        drop(failed);
        channels::end([a, b]).await?;
    }
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0], errors[2]);
    Ok(())
}

/// A method by name without a value to call it on.
#[tokio::test]
async fn a_method_needs_a_value() -> anyhow::Result<()> {
    let end = tampered(|call| {
        if let Some(function) = &mut call.function {
            *function = functions().method("put");
        }
    });
    let [a, b] = channels::group(end).await?;
    let error = greet::on(&a.peer("w1")?, "you".to_owned()).await;
    assert!(
        matches!(
            &error,
            Err(Error::Codec {
                what: "the arguments",
                ..
            })
        ),
        "{error:?}"
    );
    channels::end([a, b]).await
}

#[farref::remote]
async fn read_number(number: RRef<u64>) -> farref::Result<u64> {
    number.to_here().await
}

/// Instead of the one above: what came as a reference to text leads to a number.
#[farref::remote]
async fn read_number_for_text(text: RRef<String>) -> farref::Result<u64> {
    text.cast::<u64>()?.to_here().await
}

#[farref::remote]
async fn put_into_number(number: RRef<u64>) -> farref::Result<u64> {
    number.to_here().await
}

/// Instead of the one above: it takes the number for a till.
#[farref::remote]
async fn put_into_number_for_till(till: RRef<Till>) -> farref::Result<u64> {
    till.put(1).await
}

#[farref::remote]
async fn look_at_number(number: RRef<u64>) -> farref::Result<u64> {
    Ok(*number.local().await?)
}

/// Instead of the one above: it takes the number for a till.
#[farref::remote]
async fn look_at_number_for_till(till: RRef<Till>) -> farref::Result<u64> {
    Ok(till.local().await?.0)
}

/// Sends references as if only another system knew what they lead to.
fn of_elsewhere(call: &mut CallMessage) {
    for carried in &mut call.head.carried {
        carried.fingerprint = Fingerprint::foreign(9);
    }
}

/// Sends them to functions that take them for something else.
fn to_another_type(call: &mut CallMessage) {
    of_elsewhere(call);
    if let Some(function) = &mut call.function {
        let name = functions().by_id(function.id).unwrap().name;
        for what in ["text", "till"] {
            if let Some(other) = functions().by_name(&format!("{name}_for_{what}")) {
                *function = other.reference;
            }
        }
    }
}

#[tokio::test]
async fn a_reference_of_unknown_type_is_cast_to_what_it_is() -> anyhow::Result<()> {
    let [a, b] = channels::group(tampered(to_another_type)).await?;
    let number = a.rref(7_u64)?;
    let read = read_number::on(&a.peer("w1")?, number.clone()).await?;
    assert_eq!(read, 7);
    // Here its type is known, and stays so.
    assert!(number.cast::<u64>().is_ok());
    let error = number.cast::<String>().unwrap_err();
    assert!(matches!(error, Error::TypeMismatch(_)), "{error:?}");
    drop(number);
    channels::end([a, b]).await
}

static NUMBERS: Mutex<Vec<RRef<u64>>> = Mutex::new(Vec::new());
static TEXTS: Mutex<Vec<RRef<String>>> = Mutex::new(Vec::new());

#[farref::remote]
async fn keep_number(number: RRef<u64>) {
    NUMBERS.lock().unwrap().push(number);
}

#[farref::remote]
async fn keep_text(text: RRef<String>) {
    TEXTS.lock().unwrap().push(text);
}

/// S2, HO-2: what another system calls a type stands for any number of types here.
#[tokio::test]
async fn a_reference_of_unknown_type_is_not_reported_as_what_another_one_was_read_as()
-> anyhow::Result<()> {
    let [a, b] = channels::group(tampered(of_elsewhere)).await?;
    let peer = a.peer("w1")?;
    let (text, number) = (a.rref("text".to_owned())?, a.rref(7_u64)?);
    keep_text::on(&peer, text.clone()).await?;
    keep_number::on(&peer, number.clone()).await?;
    let references = b.references();
    let type_of = |id: String| {
        let leak = references.0.iter().find(|leak| leak.id == id);
        leak.expect("it is held").type_name.clone()
    };
    let number_type = type_of(number.id()?);
    assert!(["", "u64"].contains(&&*number_type), "{number_type}");
    NUMBERS.lock().unwrap().clear();
    TEXTS.lock().unwrap().clear();
    drop((text, number));
    channels::end([a, b]).await
}

/// S2: also of a type that no function of the program returns.
#[tokio::test]
async fn s2_a_reference_made_by_a_call_by_name_says_its_type() -> farref::Result<()> {
    struct Unseen;

    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let functions = Functions::of_program()?;
    let new = functions.by_foreign_name("shop.Till").expect("it is above");
    let till = functions.call::<Unseen>(&me.peer("worker1")?, &new, &(3_u64,));
    let till = till.remote();
    let references = me.references();
    let types: Vec<_> = references.0.iter().map(|leak| &*leak.type_name).collect();
    assert_eq!(types, [std::any::type_name::<Unseen>()]);
    drop(till);
    cluster.shutdown().await
}

/// Nothing is known of the type on the way; at the value it is, and whatever is for another type does not
/// run.
#[tokio::test]
async fn a_wrong_guess_at_an_unknown_type_shows_at_the_value() -> anyhow::Result<()> {
    let [a, b] = channels::group(tampered(to_another_type)).await?;
    let peer = a.peer("w1")?;
    let here = a.rref(7_u64)?;
    let error = put_into_number::on(&peer, here.clone()).await.unwrap_err();
    assert!(error.to_string().contains("the value is not a"), "{error}");
    let there = three::on(&peer).remote();
    let error = look_at_number::on(&peer, there.clone()).await.unwrap_err();
    assert!(
        error.to_string().contains("leads to another type"),
        "{error}"
    );
    drop((here, there));
    channels::end([a, b]).await
}

#[farref::remote]
async fn three() -> u64 {
    3
}

/// A handle that keeps nothing alive.
#[tokio::test]
async fn a_weak_worker_is_gone_with_the_last_of_the_others() -> anyhow::Result<()> {
    let cluster = Cluster::start(1).await?;
    let weak = cluster.worker(0).downgrade();
    let strong = weak.upgrade().unwrap();
    assert_eq!(
        greet::on(&strong.me(), "you".to_owned()).await?,
        "hello you"
    );
    cluster.shutdown().await?;
    drop(strong);
    // The last of its tasks may take a moment to go.
    let gone = async {
        while weak.upgrade().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, gone).await?;
    Ok(())
}

#[farref::remote]
async fn finds_its_context() -> bool {
    let here = ContextScope::current();
    let worker = farref::Worker::current();
    match (here, worker) {
        (Some(scope), Some(worker)) => ContextScope::find(&worker, scope.id()).is_some(),
        _ => false,
    }
}

/// A context is found by its id where it is open: where it was opened, and where it came with a call.
#[tokio::test]
async fn a_context_is_found_where_it_is_open_and_nowhere_else() -> anyhow::Result<()> {
    let cluster = Cluster::start(3).await?;
    let [me, other, third] = [0, 1, 2].map(|n| cluster.worker(n));
    let scope = ContextScope::open(me)?;
    let found = ContextScope::find(me, scope.id()).unwrap();
    assert_eq!(found.id(), scope.id());
    assert!(ContextScope::find(other, scope.id()).is_none());
    let peer = me.peer(other.name())?;
    assert!(
        scope
            .run(async { finds_its_context::on(&peer).await })
            .await?
    );
    assert!(ContextScope::find(other, scope.id()).is_some());
    assert!(ContextScope::find(third, scope.id()).is_none());
    found.release().await?;
    for worker in [me, other, third] {
        assert!(ContextScope::find(worker, scope.id()).is_none());
    }
    cluster.shutdown().await?;
    Ok(())
}
