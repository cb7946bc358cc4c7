//! What `farref dashboard` hands on: metrics to Prometheus, metrics and spans to a collector of OpenTelemetry. The command
//! is a process of its own; the workers, and whoever collects, are in this one.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use farref::{Misuse, StoreServer, Worker};
use farref_testkit::{eventually_async, within};
use libtest_mimic::Trial;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        crate::asynchronous,
        prometheus_is_told_of_each_worker_and_each_function,
        a_collector_gets_spans_that_belong_together_and_metrics,
        without_a_collector_the_page_is_served_all_the_same,
    ]
}

#[farref::remote(name = "export::outer")]
async fn outer() -> farref::Result<()> {
    let me = Worker::current().ok_or(Misuse::NoWorker)?;
    inner::on(&me.peer("a")?).await
}

#[farref::remote(name = "export::inner")]
async fn inner() {}

struct Group {
    _store: StoreServer,
    place: String,
    workers: [Worker; 2],
}

impl Group {
    async fn start() -> anyhow::Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let place = store.local_addr().to_string();
        let worker = |name, rank| {
            Worker::builder(name)
                .rank(rank)
                .world_size(2)
                .rendezvous(&format!("tcp://{place}"))
                .store_is_hosted_elsewhere()
                .fail_on_leaks(true)
                .join()
        };
        let (a, b) = tokio::try_join!(worker("a", 0), worker("b", 1))?;
        Ok(Self {
            _store: store,
            place,
            workers: [a, b],
        })
    }

    async fn finish(self) -> anyhow::Result<()> {
        let [a, b] = self.workers;
        tokio::try_join!(a.shutdown(), b.shutdown())?;
        Ok(())
    }
}

/// The command, and the address that it prints. It is killed when this is dropped.
async fn dashboard(place: &str, more: &[&str]) -> anyhow::Result<(Child, String)> {
    let mut process = Command::new(env!("CARGO_BIN_EXE_farref"))
        .args(["dashboard", place, "--interval", "0.2"])
        .args(more)
        .env_remove("FARREF_TOKEN")
        .env_remove("FARREF_DASHBOARD_KEY")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut line = String::new();
    let mut out = BufReader::new(process.stdout.take().context("no output")?);
    out.read_line(&mut line).await?;
    Ok((process, line.trim().to_owned()))
}

/// A request to the address of a dashboard: what it answers.
async fn get(url: &str, name: &str) -> anyhow::Result<String> {
    let rest = url.strip_prefix("http://").context("no address")?;
    let (host, path) = rest.split_once('/').context("no path")?;
    let mut stream = TcpStream::connect(host).await?;
    let request =
        format!("GET /{path}{name} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// A collector: where it listens, and what it was sent, by path.
async fn collector() -> anyhow::Result<(String, mpsc::UnboundedReceiver<(String, Value)>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let (sender, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                if let Ok(message) = receive(stream).await {
                    let _ = sender.send(message);
                }
            });
        }
    });
    Ok((address, received))
}

async fn receive(stream: TcpStream) -> anyhow::Result<(String, Value)> {
    let mut stream = BufReader::new(stream);
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("post ") {
            path = rest.split(' ').next().context("no path")?.to_owned();
        } else if let Some(rest) = line.strip_prefix("content-length:") {
            length = rest.trim().parse()?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    stream.get_mut().write_all(answer).await?;
    Ok((path, serde_json::from_slice(&body)?))
}

async fn prometheus_is_told_of_each_worker_and_each_function() -> anyhow::Result<()> {
    let group = Group::start().await?;
    for _ in 0..5 {
        outer::on(&group.workers[0].peer("b")?).await?;
    }
    let key = "a-key-of-sixteen-or-more";
    let (_process, url) = dashboard(&group.place, &["--key", key]).await?;
    ensure!(url.ends_with(&format!("/{key}/")), "{url}");
    let mut answer = String::new();
    eventually_async("the function is in the metrics", async || {
        answer = get(&url, "metrics").await?;
        Ok(answer.contains("export::outer"))
    })
    .await?;
    assert!(
        answer.contains("Content-Type: text/plain; version=0.0.4"),
        "{answer}"
    );
    for line in [
        "# TYPE farref_served_total counter",
        "farref_served_total{worker=\"b\",function=\"export::outer\"} 5",
        "farref_served_total{worker=\"a\",function=\"export::inner\"} 5",
        "farref_serve_seconds_count{worker=\"b\",function=\"export::outer\"} 5",
        "farref_serve_seconds_bucket{worker=\"b\",function=\"export::outer\",le=\"+Inf\"} 5",
        "farref_calls_total{worker=\"a\"} 5",
        "farref_up{worker=\"b\"} 1",
    ] {
        assert!(
            answer.lines().any(|known| known == line),
            "{line} is not in\n{answer}"
        );
    }
    group.finish().await
}

async fn a_collector_gets_spans_that_belong_together_and_metrics() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let (address, mut received) = collector().await?;
    let (_process, _) = dashboard(&group.place, &["--otlp", &address]).await?;
    let peer = group.workers[0].peer("b")?;
    let mut spans: BTreeMap<String, Value> = BTreeMap::new();
    let mut metrics = None;
    let nested = loop {
        outer::on(&peer).await?;
        // The dashboard sends metrics again and again, also when there are no new calls.
        let next = within("the collector", received.recv()).await;
        let next = next.with_context(|| format!("{metrics:?}, {spans:?}"))?;
        match next {
            Some((path, message)) if path == "/v1/traces" => {
                for resource in message["resourceSpans"].as_array().context("no spans")? {
                    let worker = &resource["resource"]["attributes"][1]["value"]["stringValue"];
                    for span in resource["scopeSpans"][0]["spans"]
                        .as_array()
                        .context("no spans")?
                    {
                        let mut span = span.clone();
                        span["worker"] = worker.clone();
                        let id = span["spanId"].as_str().context("no id")?;
                        spans.insert(id.to_owned(), span);
                    }
                }
            }
            Some((path, message)) if path == "/v1/metrics" => metrics = Some(message),
            _ => {}
        }
        let nested = spans.values().find_map(|span| {
            let parent = spans.get(span["parentSpanId"].as_str()?)?;
            (span["name"] == "export::inner").then_some((span, parent))
        });
        let has_function = |metrics: &Value| metrics.to_string().contains("export::outer");
        if let Some(nested) = nested
            && metrics.as_ref().is_some_and(has_function)
        {
            break nested;
        }
    };
    let (inner, outer) = nested;
    assert_eq!(
        (&inner["worker"], &outer["worker"]),
        (&"a".into(), &"b".into())
    );
    assert_eq!(outer["name"], "export::outer");
    assert_eq!(inner["traceId"], outer["traceId"]);
    assert_eq!(inner["traceId"].as_str().map(str::len), Some(32));
    assert_eq!(outer["parentSpanId"], "");
    let time = |span: &Value, field: &str| {
        span[field]
            .as_str()
            .and_then(|time| time.parse::<u64>().ok())
    };
    assert!(time(outer, "startTimeUnixNano") <= time(outer, "endTimeUnixNano"));
    group.finish().await
}

/// A collector that is not there holds nobody up.
async fn without_a_collector_the_page_is_served_all_the_same() -> anyhow::Result<()> {
    let group = Group::start().await?;
    let (_process, url) = dashboard(&group.place, &["--otlp", "http://127.0.0.1:9"]).await?;
    eventually_async("the workers are shown", async || {
        let shown = get(&url, "data?view=workers").await?;
        Ok(shown.contains("\"alive\""))
    })
    .await?;
    group.finish().await
}
