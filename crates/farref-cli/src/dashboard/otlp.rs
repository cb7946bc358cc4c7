//! What was seen, sent on to a collector of OpenTelemetry: metrics and spans, as OTLP over HTTP with JSON.
//!
//! The ids of traces and spans are those that farref hands on from worker to worker: 8 bytes each, so the first 8 of the
//! 16 that a trace has elsewhere are zero.
//!
//! # Invariants
//!
//! - **OT-1** A collector that is gone, slow or says anything holds nobody up: so much time ([`PATIENCE`]), so much of an
//!   answer ([`MAX_ANSWER`]), at most [`BATCH`] spans in a message. What cannot be sent is left out, and said once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, timeout};

use super::metrics::{Family, Kind, Number, families};
use super::state::{State, now};
use super::timeline::Span;
use crate::view::text::clean;

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 64 << 10;
/// As much of an answer's status is said.
const MAX_STATUS: usize = 32;
/// Spans in one message.
const BATCH: usize = 2000;
/// How often metrics are sent, at most.
const METRICS_EVERY: Duration = Duration::from_secs(5);

/// Where a collector listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Collector {
    /// Host and port.
    authority: String,
    /// Before `/v1/..`.
    prefix: String,
}

impl Collector {
    /// Reads `http://host:port`, perhaps with a path.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "expected http://HOST:PORT".to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || port.parse::<u16>().is_err() || !plain(authority) || !plain(path) {
            return Err(wrong());
        }
        let path = path.trim_matches('/');
        Ok(Self {
            authority: authority.to_owned(),
            prefix: if path.is_empty() {
                String::new()
            } else {
                format!("/{path}")
            },
        })
    }

    async fn post(&self, path: &str, body: &Value) -> Result<(), String> {
        let sending = async {
            let mut stream = TcpStream::connect(&self.authority).await?;
            let body = body.to_string();
            let head = format!(
                "POST {}{path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                self.prefix,
                self.authority,
                body.len(),
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = match timeout(PATIENCE, sending).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("it does not answer within {PATIENCE:?}")),
        };
        let status = answer
            .split(|byte| *byte == b' ')
            .nth(1)
            .unwrap_or_default();
        match status.first() {
            Some(b'2') => Ok(()),
            _ => {
                let status = status.get(..MAX_STATUS).unwrap_or(status);
                let status = clean(&String::from_utf8_lossy(status));
                Err(format!("it answers {status}"))
            }
        }
    }
}

/// Sends what there is, again and again.
pub(super) async fn export(collector: Collector, state: Arc<Mutex<State>>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(200)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent_spans = 0;
    let mut metrics_due = tokio::time::Instant::now();
    let mut works = true;
    loop {
        ticks.tick().await;
        let wants_metrics = metrics_due <= tokio::time::Instant::now();
        let (batches, metrics) = {
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let new: Vec<&Span> = state.timeline.since(sent_spans).collect();
            sent_spans = state.timeline.added;
            let batches: Vec<Value> = new.chunks(BATCH).map(traces).collect();
            let metrics = (wants_metrics && state.at.is_some()).then(|| told(&state));
            (batches, metrics)
        };
        let mut outcome = Ok(());
        for batch in &batches {
            outcome = outcome.and(collector.post("/v1/traces", batch).await);
        }
        if let Some(metrics) = &metrics {
            metrics_due = tokio::time::Instant::now() + METRICS_EVERY.max(interval);
            outcome = outcome.and(collector.post("/v1/metrics", metrics).await);
        }
        match outcome {
            Err(why) if works => {
                eprintln!(
                    "farref: nothing can be sent to {}: {why}; trying again",
                    collector.authority
                );
                works = false;
            }
            Ok(()) if !works && (metrics.is_some() || !batches.is_empty()) => {
                eprintln!("farref: {} takes what is sent again", collector.authority);
                works = true;
            }
            _ => {}
        }
    }
}

/// What is told of the workers.
pub(super) fn told(state: &State) -> Value {
    metrics(&families(state), &began(state))
}

/// When each worker began, in milliseconds since 1970. The same each time: another beginning means that it counts anew.
fn began(state: &State) -> BTreeMap<&str, f64> {
    let seen = state.seen.iter();
    seen.filter_map(|one| Some((&*one.name, state.timeline.began(one.rank)?)))
        .collect()
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// A worker, as what it is that is measured.
fn resource(worker: &str) -> Value {
    json!({"attributes": [text("service.name", "farref"), text("service.instance.id", worker)]})
}

fn scope() -> Value {
    json!({"name": "farref", "version": env!("CARGO_PKG_VERSION")})
}

/// A moment as OTLP writes it.
fn nanoseconds(milliseconds: f64) -> String {
    format!("{}", (milliseconds.max(0.0) * 1e6) as u64)
}

/// Spans by worker.
fn traces(spans: &[&Span]) -> Value {
    let mut workers: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for span in spans {
        let told = json!({
            "traceId": format!("{:0>32}", span.trace),
            "spanId": span.span,
            "parentSpanId": span.parent.as_deref().unwrap_or_default(),
            "name": span.function,
            "kind": 2, // a server's
            "startTimeUnixNano": nanoseconds(span.at),
            "endTimeUnixNano": nanoseconds(span.at + span.took),
            "attributes": [
                text("rpc.system", "farref"), text("rpc.method", &span.function), text("farref.caller", &span.caller),
            ],
            "status": if span.failed { json!({"code": 2}) } else { json!({}) },
        });
        workers.entry(&span.worker).or_default().push(told);
    }
    let told = workers.into_iter().map(|(worker, spans)| {
        json!({"resource": resource(worker), "scopeSpans": [{"scope": scope(), "spans": spans}]})
    });
    json!({"resourceSpans": told.collect::<Vec<_>>()})
}

/// Metrics by worker.
fn metrics(families: &[Family<'_>], began: &BTreeMap<&str, f64>) -> Value {
    let at = nanoseconds(now());
    let mut workers: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for family in families {
        let mut points: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for point in &family.points {
            let start = began.get(point.worker).copied().map(nanoseconds);
            let function = point.function.map(|function| text("function", function));
            let mut told = json!({
                "attributes": function.into_iter().collect::<Vec<_>>(),
                "timeUnixNano": at,
                "startTimeUnixNano": start.unwrap_or_else(|| at.clone()),
            });
            match &point.value {
                Number::Plain(value) => told["asDouble"] = json!(value),
                Number::Spread(spread) => {
                    let mut counts: Vec<u64> =
                        spread.buckets.iter().map(|(_, count)| *count).collect();
                    let within = counts
                        .iter()
                        .fold(0, |sum: u64, one| sum.saturating_add(*one));
                    counts.push(spread.count.saturating_sub(within));
                    told["count"] = json!(spread.count.to_string());
                    told["sum"] = json!(spread.sum);
                    told["bucketCounts"] = counts.iter().map(ToString::to_string).collect();
                    told["explicitBounds"] =
                        spread.buckets.iter().map(|(bound, _)| *bound).collect();
                }
            }
            points.entry(point.worker).or_default().push(told);
        }
        for (worker, points) in points {
            let data = match family.kind {
                Kind::Counter => (
                    "sum",
                    json!({"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true}),
                ),
                Kind::Gauge => ("gauge", json!({"dataPoints": points})),
                Kind::Histogram => (
                    "histogram",
                    json!({"dataPoints": points, "aggregationTemporality": 2}),
                ),
            };
            let told = json!({"name": family.name, "description": family.help, data.0: data.1});
            workers.entry(worker).or_default().push(told);
        }
    }
    let told = workers.into_iter().map(|(worker, metrics)| {
        json!({"resource": resource(worker), "scopeMetrics": [{"scope": scope(), "metrics": metrics}]})
    });
    json!({"resourceMetrics": told.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fetch::Update;
    use crate::view::samples;

    #[test]
    fn a_collector_has_a_host_and_a_port() {
        let read = |text| Collector::parse(text).map(|one| (one.authority, one.prefix));
        let of = |authority: &str, prefix: &str| Ok((authority.to_owned(), prefix.to_owned()));
        assert_eq!(read("http://localhost:4318"), of("localhost:4318", ""));
        assert_eq!(read("http://[::1]:4318/a/b/"), of("[::1]:4318", "/a/b"));
        for bad in [
            "",
            "localhost:4318",
            "https://x:1",
            "http://x",
            "http://:1",
            "http://x:y",
            "http://a b:1",
            "http://a:1/\r\nX: y",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    fn state() -> State {
        let mut seen = samples::group();
        samples::edit(&mut seen[0], |snapshot| {
            snapshot.served = samples::served("apply", 2, &[1; 27]);
            snapshot.finished = samples::finished("apply", (7, 9, 8), 7100, 100);
            snapshot.recorded = 1;
        });
        let mut state = State::new("here:1", Duration::from_secs(1));
        state.update(Update::Seen(samples::group()), 7_384_000.0);
        state.update(Update::Seen(seen), 7_384_000.0);
        state
    }

    #[test]
    fn a_worker_has_begun_when_it_has_however_long_its_answers_take() {
        let mut state = state();
        let began_at = began(&state)["parameters"];
        for late in [10.0, 3.0, 7000.0] {
            state.update(Update::Seen(samples::group()), 7_384_000.0 + late);
            assert_eq!(began(&state)["parameters"], began_at);
        }
        let mut silent = samples::group();
        for one in &mut silent {
            one.snapshot = Err("stopped".to_owned());
        }
        state.update(Update::Seen(silent), 8_000_000.0);
        assert_eq!(began(&state)["parameters"], began_at);
    }

    #[test]
    fn spans_carry_the_ids_that_went_from_worker_to_worker() {
        let state = state();
        let told = traces(&state.timeline.latest(10));
        let span = &told["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "00000000000000000000000000000007");
        assert_eq!(
            (&span["spanId"], &span["parentSpanId"]),
            (&json!("0000000000000009"), &json!("0000000000000008"))
        );
        assert_eq!(
            (&span["startTimeUnixNano"], &span["endTimeUnixNano"]),
            (&json!("7100000000"), &json!("7200000000"))
        );
    }

    #[test]
    fn metrics_have_their_function_and_all_calls_are_in_a_bucket() {
        let state = state();
        let told = told(&state);
        let of_worker = &told["resourceMetrics"][0];
        assert_eq!(
            of_worker["resource"]["attributes"][1]["value"]["stringValue"],
            "parameters"
        );
        let all = of_worker["scopeMetrics"][0]["metrics"]
            .as_array()
            .expect("metrics");
        let find = |name: &str| {
            all.iter()
                .find(|one| one["name"] == name)
                .expect("it is there")
        };
        let point = &find("farref_serve_seconds")["histogram"]["dataPoints"][0];
        assert_eq!(point["attributes"][0]["value"]["stringValue"], "apply");
        let buckets = point["bucketCounts"].as_array().expect("buckets");
        let in_all: u64 = buckets
            .iter()
            .filter_map(|one| one.as_str()?.parse::<u64>().ok())
            .sum();
        assert_eq!((in_all, &point["count"]), (27, &json!("27")));
        assert_eq!(
            buckets.len(),
            point["explicitBounds"].as_array().map_or(0, Vec::len) + 1
        );
        assert_eq!(find("farref_served_total")["sum"]["isMonotonic"], true);
    }
}
