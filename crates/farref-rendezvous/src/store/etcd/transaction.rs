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
    writes: bool,
}

/// What came of a transaction.
#[derive(Debug)]
pub(super) struct Done {
    /// Whether all conditions held.
    pub(super) succeeded: bool,
    /// etcd's count of changes after it.
    pub(super) revision: i64,
    responses: Vec<Value>,
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

    /// Whether it may change anything: then it must not be sent twice.
    pub(super) fn writes(&self) -> bool {
        self.writes
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
        self.writes = true;
        let lease = lease.unwrap_or(0).to_string();
        let put = json!({ "key": encoded(key), "value": STANDARD.encode(value), "lease": lease });
        self.success.push(json!({ "request_put": put }));
        self
    }

    pub(super) fn delete(mut self, key: &str) -> Self {
        self.writes = true;
        let delete = json!({ "key": encoded(key) });
        self.success.push(json!({ "request_delete_range": delete }));
        self
    }

    pub(super) fn delete_all(mut self, prefix: &str) -> Self {
        self.writes = true;
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
    pub(super) fn read(answer: &Value) -> Self {
        let responses = answer["responses"].as_array().cloned();
        Self {
            succeeded: answer["succeeded"].as_bool().unwrap_or(false),
            revision: number(&answer["header"]["revision"]),
            responses: responses.unwrap_or_default(),
        }
    }

    fn range(&self, index: usize) -> &Value {
        match self.responses.get(index) {
            Some(response) => &response["response_range"],
            None => &Value::Null,
        }
    }

    /// The key that an operation has read, if it is there.
    pub(super) fn first(&self, index: usize) -> Option<Kv> {
        let kv = self.range(index)["kvs"].get(0)?;
        Some(Kv {
            value: decoded(&kv["value"]),
            changed: number(&kv["mod_revision"]),
        })
    }

    /// How many keys an operation has found.
    pub(super) fn count(&self, index: usize) -> i64 {
        number(&self.range(index)["count"])
    }

    /// How many keys an operation has deleted.
    pub(super) fn deleted(&self, index: usize) -> i64 {
        let response = self.responses.get(index);
        response.map_or(0, |response| {
            number(&response["response_delete_range"]["deleted"])
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

pub(super) fn decoded(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap_or_default();
    STANDARD.decode(text).unwrap_or_default()
}

/// The first key after all that start with this, which ends with `/`.
pub(super) fn end_of_prefix(prefix: &str) -> String {
    debug_assert!(prefix.ends_with('/'));
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix))
}
