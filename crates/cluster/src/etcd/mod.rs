//! Client of etcd's JSON gateway, with the few calls that the cluster needs.
//!
//! A gRPC client would need a protocol compiler or generated code, and an HTTP/2 stack, for six calls. Every etcd since 3.4
//! has the gateway under `/v3/`, and the program already uses HTTP/1.1 for its own API.

use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD as BASE64, Engine as _};
use evenkeel_policy::config::Endpoint;
use serde::{Deserialize, Deserializer, de};
use serde_json::json;

mod access;
mod http;

pub(crate) use access::{Access, lock};
pub(crate) use http::Error;
use http::{Connection, Lines, Refusal, unlike};

/// Largest number of keys that are read at once: more than there are shards of all sizes. An undivided cluster has far fewer.
const MAX_KEYS: u32 = 8_192;

/// A client connected to one etcd server.
pub(crate) struct Client(Connection);

/// Result of [`Client::claim`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This process has created the key, at this etcd revision.
    Ours(i64),
    /// The key existed already: the etcd revision of its newest write, and its value.
    Taken(i64, Vec<u8>),
}

/// A range of etcd keys: from `from` on, up to but not including `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Keys {
    /// All keys that begin with `prefix`.
    pub(crate) fn with(prefix: &str) -> Self {
        Self::between(prefix, prefix)
    }

    /// All keys that begin with `first` or with `last`, and all keys between them in byte order.
    pub(crate) fn between(first: &str, last: &str) -> Self {
        Self { from: first.as_bytes().to_vec(), to: after(last) }
    }
}

/// A change of a key that a watch reports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The key was written, and has this value since this etcd revision.
    Put(String, Vec<u8>, i64),
    /// The key was deleted, or its lease has ended.
    Deleted(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pair {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    mod_revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Range {
    header: Header,
    kvs: Vec<Pair>,
    /// True if the range has more keys than were asked for.
    more: bool,
    #[serde(deserialize_with = "number")]
    count: i64,
}

impl Range {
    /// The same range, if it has all keys: a host that takes some of the members for all of them takes the parts of the others.
    fn whole(self, endpoint: &Endpoint) -> Result<Self, Error> {
        if self.more { Err(Error::TooMany { endpoint: endpoint.clone(), most: MAX_KEYS }) } else { Ok(self) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Operation {
    response_range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transaction {
    header: Header,
    succeeded: bool,
    responses: Vec<Operation>,
}

impl Transaction {
    /// The key whose state kept the transaction from writing; `None` if it does not exist.
    fn found(&self) -> Option<&Pair> {
        self.responses
            .iter()
            .filter_map(|operation| operation.response_range.as_ref())
            .flat_map(|range| &range.kvs)
            .next()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lease {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    ttl: i64,
}

/// One answer in a stream of answers: a result or an error.
#[derive(Debug, Deserialize)]
struct Streamed<T> {
    result: Option<T>,
    error: Option<Refusal>,
}

impl<T> Streamed<T> {
    fn result(self, endpoint: &Endpoint) -> Result<T, Error> {
        match (self.result, self.error) {
            (_, Some(refusal)) => Err(refusal.at(endpoint)),
            (Some(result), None) => Ok(result),
            (None, None) => Err(unlike(endpoint, &"neither result nor error")),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Watched {
    created: bool,
    canceled: bool,
    #[serde(deserialize_with = "number")]
    compact_revision: i64,
    cancel_reason: String,
    events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    /// Type of the event: `DELETE`, or empty for a write (`PUT`), for which etcd omits the field.
    r#type: String,
    kv: Pair,
}

/// Deserialises a 64-bit number, which etcd writes as a JSON string.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(i64),
    }
    match Written::deserialize(deserializer)? {
        Written::Number(number) => Ok(number),
        Written::Text(text) => text.parse().map_err(de::Error::custom),
    }
}

impl Client {
    /// Connects to an etcd server. Connecting and every later request may take `patience`.
    pub(crate) async fn open(endpoint: &Endpoint, patience: Duration, access: &Arc<Access>) -> Result<Self, Error> {
        Connection::open(endpoint, patience, access).await.map(Self)
    }

    /// Creates a lease, which ends `seconds` seconds after the newest [`Self::keep_alive`]; returns its number.
    pub(crate) async fn grant(&mut self, seconds: u64) -> Result<i64, Error> {
        let lease: Lease = self.0.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        if lease.id == 0 {
            return Err(unlike(self.0.endpoint(), &"a lease without a number"));
        }
        Ok(lease.id)
    }

    /// Keeps a lease alive for its full time from now on; false if it has ended.
    pub(crate) async fn keep_alive(&mut self, lease: i64) -> Result<bool, Error> {
        let kept: Streamed<Lease> = self.0.call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
        Ok(kept.result(self.0.endpoint())?.ttl > 0)
    }

    /// Ends a lease; etcd deletes the keys that belong to it.
    pub(crate) async fn revoke(&mut self, lease: i64) -> Result<(), Error> {
        self.0.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })).await.map(|_: serde_json::Value| ())
    }

    /// Creates a key with `value` under `lease`, if the key does not exist.
    pub(crate) async fn claim(&mut self, key: &str, value: &[u8], lease: i64) -> Result<Claim, Error> {
        let made = self.put_if(key, value, lease, 0).await?;
        if made.succeeded {
            return Ok(Claim::Ours(made.header.revision));
        }
        let holder = made.found().ok_or_else(|| unlike(self.0.endpoint(), &"a key exists, yet has no value"))?;
        Ok(Claim::Taken(holder.mod_revision, self.bytes(&holder.value)?))
    }

    /// Writes a key under `lease` if the key's newest write is at `revision` (0: if the key does not exist). Returns the
    /// revision of the key's newest write after this call (0: it does not exist), and, if this call did not write, the key's
    /// value.
    pub(crate) async fn renew(
        &mut self,
        key: &str,
        value: &[u8],
        lease: i64,
        revision: i64,
    ) -> Result<(i64, Option<Vec<u8>>), Error> {
        let done = self.put_if(key, value, lease, revision).await?;
        if done.succeeded {
            return Ok((done.header.revision, None));
        }
        // It may have gone since.
        let Some(holder) = done.found() else { return Ok((0, Some(Vec::new()))) };
        Ok((holder.mod_revision, Some(self.bytes(&holder.value)?)))
    }

    /// Number of existing keys in the range `keys`.
    pub(crate) async fn count(&mut self, keys: &Keys) -> Result<u64, Error> {
        let (from, to) = (BASE64.encode(&keys.from), BASE64.encode(&keys.to));
        let question = json!({ "key": from, "range_end": to, "count_only": true });
        let range: Range = self.0.call("/v3/kv/range", &question).await?;
        Ok(u64::try_from(range.count).unwrap_or(0))
    }

    /// Writes a key under `lease` if the key's newest write is at `revision`, so that of two writes that name the same revision
    /// only one takes effect, however late it comes. Returns the revision of the new write; `None` if the key has been written
    /// since, or does not exist.
    pub(crate) async fn replace(
        &mut self,
        key: &str,
        value: &[u8],
        lease: i64,
        revision: i64,
    ) -> Result<Option<i64>, Error> {
        let done = self.put_if(key, value, lease, revision).await?;
        Ok(done.succeeded.then_some(done.header.revision))
    }

    /// Writes a key under `lease` if the key's newest write is at `revision`; 0: if the key does not exist.
    async fn put_if(&mut self, key: &str, value: &[u8], lease: i64, revision: i64) -> Result<Transaction, Error> {
        let (key, value) = (BASE64.encode(key.as_bytes()), BASE64.encode(value));
        let question = json!({
            "compare": [{ "target": "MOD", "result": "EQUAL", "key": key, "mod_revision": revision.to_string() }],
            "success": [{ "request_put": { "key": key, "value": value, "lease": lease.to_string() } }],
            "failure": [{ "request_range": { "key": key } }],
        });
        self.0.call("/v3/kv/txn", &question).await
    }

    /// Reads all keys in the range `keys`; returns them with their values and the etcd revisions of their newest writes, and a
    /// watch of every later change.
    pub(crate) async fn follow(mut self, keys: &Keys) -> Result<(Vec<(String, Vec<u8>, i64)>, Watch), Error> {
        let (from, to) = (BASE64.encode(&keys.from), BASE64.encode(&keys.to));
        let question = json!({ "key": from, "range_end": to, "limit": MAX_KEYS.to_string() });
        let range: Range = self.0.call("/v3/kv/range", &question).await?;
        let range = range.whole(self.0.endpoint())?;
        let read = |pair: &Pair| Ok((self.text(&pair.key)?, self.bytes(&pair.value)?, pair.mod_revision));
        let all: Result<Vec<_>, Error> = range.kvs.iter().map(read).collect();
        let all = all?;
        let next = range.header.revision + 1;
        let question =
            json!({ "create_request": { "key": from, "range_end": to, "start_revision": next.to_string() } });
        let lines = self.0.stream("/v3/watch", &question).await?;
        Ok((all, Watch { lines, next }))
    }

    fn bytes(&self, text: &str) -> Result<Vec<u8>, Error> {
        bytes(self.0.endpoint(), text)
    }

    fn text(&self, text: &str) -> Result<String, Error> {
        text_of(self.0.endpoint(), text)
    }
}

/// A watch of a range of keys, which etcd sends changes to as they happen.
pub(crate) struct Watch {
    lines: Lines,
    /// The lowest etcd revision whose changes [`Self::next`] has not returned yet.
    next: i64,
}

impl Watch {
    /// The etcd revision at which [`Client::follow`] has read all keys.
    pub(crate) fn known(&self) -> i64 {
        self.next - 1
    }

    /// The next changes; waits for them without a limit. No changes are lost if the future is dropped while it waits.
    pub(crate) async fn next(&mut self) -> Result<Vec<Change>, Error> {
        loop {
            let streamed: Streamed<Watched> = self.lines.next().await?;
            let endpoint = self.lines.endpoint();
            let watched = streamed.result(endpoint)?;
            if watched.compact_revision > 0 {
                return Err(Error::Compacted { endpoint: endpoint.clone(), revision: self.next });
            }
            if watched.canceled {
                let message = format!("etcd cancelled the watch ({})", watched.cancel_reason);
                return Err(Error::Refused { endpoint: endpoint.clone(), code: 0, message });
            }
            if watched.created && watched.events.is_empty() {
                continue;
            }
            let change = |event: &Event| {
                let key = text_of(endpoint, &event.kv.key)?;
                if event.r#type == "DELETE" {
                    return Ok(Change::Deleted(key));
                }
                Ok(Change::Put(key, bytes(endpoint, &event.kv.value)?, event.kv.mod_revision))
            };
            return watched.events.iter().map(change).collect();
        }
    }
}

fn bytes(endpoint: &Endpoint, text: &str) -> Result<Vec<u8>, Error> {
    BASE64.decode(text).map_err(|error| unlike(endpoint, &format!("a key or value is not base64: {error}")))
}

fn text_of(endpoint: &Endpoint, text: &str) -> Result<String, Error> {
    // Others may write what they like below our prefix; what is no text is no key of ours.
    Ok(String::from_utf8_lossy(&bytes(endpoint, text)?).into_owned())
}

/// The smallest key, in byte order, after all keys that begin with `prefix`.
fn after(prefix: &str) -> Vec<u8> {
    let mut key = prefix.as_bytes().to_vec();
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return key;
        }
    }
    // All keys.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_which_keys_are_missing_is_an_error() {
        let endpoint: Endpoint = "http://127.0.0.1:1".parse().expect("an address");
        let range = |text: &str| serde_json::from_str::<Range>(text).expect("a range").whole(&endpoint);
        assert_eq!(range("{\"count\":\"1\",\"kvs\":[{\"key\":\"YQ==\"}]}").expect("all keys").kvs.len(), 1);
        let error = range("{\"count\":\"9000\",\"more\":true}").expect_err("some keys");
        assert!(error.to_string().contains("more than 8192 keys"), "{error}");
    }

    #[test]
    fn a_key_that_is_no_text_is_no_error() {
        let endpoint: Endpoint = "http://127.0.0.1:1".parse().expect("an address");
        let key = BASE64.encode(b"evenkeel/main/members/\xff");
        assert_eq!(text_of(&endpoint, &key).expect("some key"), "evenkeel/main/members/\u{fffd}");
        assert!(text_of(&endpoint, "no base64").is_err());
    }
}
