//! A transaction as etcd's gateway writes it down: conditions, what to do if all hold, and what if not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Conditions and operations, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(super) struct Transaction {
    compare: Vec<Value>,
    success: Vec<Value>,
    failure: Vec<Value>,
    is_once: bool,
}

/// What came of a transaction.
#[derive(Debug)]
pub(super) struct Done {
    /// Whether all conditions held.
    pub(super) succeeded: bool,
    /// etcd's count of changes after it.
    pub(super) revision: i64,
    responses: Vec<Response>,
}

/// What came of one operation.
#[derive(Debug)]
struct Response {
    first: Option<Kv>,
    count: i64,
}

/// A key that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Kv {
    pub(super) value: Vec<u8>,
    /// etcd's count of changes when it was last set.
    pub(super) changed: i64,
}

impl Transaction {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// The same, if `key` has this value as well; the key is the first that is read otherwise.
    pub(super) fn guarded(key: &str, value: &[u8], transaction: Self) -> Self {
        let mut guarded = transaction.if_value(key, value);
        guarded
            .failure
            .insert(0, json!({ "request_range": { "key": encoded(key) } }));
        guarded
    }

    /// The same, sent once only: if it was done unnoticed, doing it again would be something else.
    pub(super) fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Whether it must not be sent twice.
    pub(super) fn is_once(&self) -> bool {
        self.is_once
    }

    pub(super) fn if_value(mut self, key: &str, value: &[u8]) -> Self {
        let (key, value) = (encoded(key), STANDARD.encode(value));
        self.compare
            .push(json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": value }));
        self
    }

    pub(super) fn if_missing(mut self, key: &str) -> Self {
        self.compare.push(json!({
            "key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0",
        }));
        self
    }

    /// If no key starts with this.
    pub(super) fn if_none(mut self, prefix: &str) -> Self {
        self.compare.push(json!({
            "key": encoded(prefix), "range_end": encoded(&end_of_prefix(prefix)),
            "target": "CREATE", "result": "EQUAL", "create_revision": "0",
        }));
        self
    }

    pub(super) fn if_unchanged(mut self, key: &str, since: i64) -> Self {
        self.compare.push(json!({
            "key": encoded(key), "target": "MOD", "result": "EQUAL",
            "mod_revision": since.to_string(),
        }));
        self
    }

    pub(super) fn put(mut self, key: &str, value: &[u8], lease: Option<i64>) -> Self {
        let lease = lease.unwrap_or(0).to_string();
        let put = json!({ "key": encoded(key), "value": STANDARD.encode(value), "lease": lease });
        self.success.push(json!({ "request_put": put }));
        self
    }

    pub(super) fn delete(mut self, key: &str) -> Self {
        let delete = json!({ "key": encoded(key) });
        self.success.push(json!({ "request_delete_range": delete }));
        self
    }

    pub(super) fn delete_all(mut self, prefix: &str) -> Self {
        let end = encoded(&end_of_prefix(prefix));
        let delete = json!({ "key": encoded(prefix), "range_end": end });
        self.success.push(json!({ "request_delete_range": delete }));
        self
    }

    pub(super) fn get(mut self, key: &str) -> Self {
        let get = json!({ "key": encoded(key) });
        self.success.push(json!({ "request_range": get }));
        self
    }

    /// Whether it is there.
    pub(super) fn look_for(mut self, key: &str) -> Self {
        let count = json!({ "key": encoded(key), "count_only": true });
        self.success.push(json!({ "request_range": count }));
        self
    }

    /// How many keys start with this.
    pub(super) fn count(mut self, prefix: &str) -> Self {
        let end = encoded(&end_of_prefix(prefix));
        let count = json!({ "key": encoded(prefix), "range_end": end, "count_only": true });
        self.success.push(json!({ "request_range": count }));
        self
    }

    /// Reads a key if the conditions do not hold.
    pub(super) fn otherwise_get(mut self, key: &str) -> Self {
        let get = json!({ "key": encoded(key) });
        self.failure.push(json!({ "request_range": get }));
        self
    }

    pub(super) fn into_request(self) -> Value {
        let Self {
            compare,
            success,
            failure,
            ..
        } = self;
        json!({ "compare": compare, "success": success, "failure": failure })
    }
}

impl Done {
    /// What etcd answers; the error says what an etcd would not.
    pub(super) fn read(answer: &Value) -> Result<Self, &'static str> {
        let revision = number(&answer["header"]["revision"]);
        if revision <= 0 {
            // What is not an answer must not be taken for one that says no.
            return Err("its answer has no count of changes");
        }
        let responses = answer["responses"].as_array();
        let responses = responses.into_iter().flatten().map(Response::read);
        Ok(Self {
            succeeded: answer["succeeded"].as_bool().unwrap_or(false),
            revision,
            responses: responses.collect::<Result<_, _>>()?,
        })
    }

    /// The key that an operation has read, if it is there.
    pub(super) fn first(&self, index: usize) -> Option<&Kv> {
        self.responses.get(index)?.first.as_ref()
    }

    /// How many keys an operation has found.
    pub(super) fn count(&self, index: usize) -> i64 {
        self.responses
            .get(index)
            .map_or(0, |response| response.count)
    }
}

impl Response {
    fn read(response: &Value) -> Result<Self, &'static str> {
        let range = &response["response_range"];
        let first = range["kvs"].get(0).map(|kv| {
            let value = decoded(&kv["value"]).ok_or("a value is not in base64")?;
            let changed = number(&kv["mod_revision"]);
            Ok::<_, &str>(Kv { value, changed })
        });
        Ok(Self {
            first: first.transpose()?,
            count: number(&range["count"]),
        })
    }
}

/// Numbers of 64 bits are texts in JSON, and left out if they are 0.
pub(super) fn number(value: &Value) -> i64 {
    match value {
        Value::String(text) => text.parse().unwrap_or(0),
        value => value.as_i64().unwrap_or(0),
    }
}

pub(super) fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

/// Bytes are texts in base64, and left out if there are none.
pub(super) fn decoded(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => Some(Vec::new()),
        value => STANDARD.decode(value.as_str()?).ok(),
    }
}

/// The first key after all that start with this, which ends with `/`.
pub(super) fn end_of_prefix(prefix: &str) -> String {
    debug_assert!(prefix.ends_with('/'));
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix))
}
