//! What farref counts, in the form that Prometheus reads.
//!
//! farref reports to the `metrics` facade; which exporter listens is up to the program. Here every worker
//! has one, and can be asked for its page. `cargo run -p farref-examples --example metrics` prints:
//!
//! ```text
//! of `client`:
//!   farref_calls_cancelled_total{worker="client"} 0
//!   farref_calls_failed_total{worker="client"} 3
//!   farref_calls_total{worker="client"} 103
//! of `server`:
//!   farref_served_failed_total{worker="server",function="metrics::square_root"} 3
//!   farref_served_refused_total{worker="server"} 0
//!   farref_served_total{worker="server",function="metrics::square_root"} 103
//! the counts are right, both workers have ended
//! ```

// A program, not a library.
#![allow(missing_docs)]

use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use farref::{Error, Worker};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Renders what this process has counted.
static EXPORTER: OnceLock<PrometheusHandle> = OnceLock::new();

#[farref::remote]
async fn square_root(x: f64) -> Result<f64, String> {
    if x < 0.0 {
        return Err(format!("{x} has no square root"));
    }
    Ok(x.sqrt())
}

/// The page that Prometheus would get. (With the exporter's feature `http-listener` and
/// `PrometheusBuilder::install` it is served at `http://localhost:9000/metrics`.)
#[farref::remote]
async fn page() -> Result<String> {
    let exporter = EXPORTER.get().context("no exporter is installed")?;
    exporter.run_upkeep(); // a real program does this every few seconds
    Ok(exporter.render())
}

/// Prints the lines of a page that begin so, and checks them.
fn show(worker: &str, page: &str, metric: &str, expected: &[&str]) -> Result<()> {
    println!("of `{worker}`:");
    let mut lines: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with(metric))
        .collect();
    lines.sort();
    for line in &lines {
        println!("  {line}");
    }
    ensure!(lines == expected, "expected {expected:?}");
    Ok(())
}

async fn client(me: &Worker) -> Result<()> {
    let server = me.peer("server")?;
    for x in 0..100 {
        square_root::on(&server, f64::from(x)).await?;
    }
    for _ in 0..3 {
        let failed = square_root::on(&server, -1.0).await;
        ensure!(matches!(failed, Err(Error::Remote(_))), "{failed:?}");
    }
    let mine = page().await?;
    let calls = [
        "farref_calls_cancelled_total{worker=\"client\"} 0",
        "farref_calls_failed_total{worker=\"client\"} 3",
        "farref_calls_total{worker=\"client\"} 103",
    ];
    show("client", &mine, "farref_calls", &calls)?;
    let servers = page::on(&server).await?;
    let served = [
        "farref_served_failed_total{worker=\"server\",function=\"metrics::square_root\"} 3",
        "farref_served_refused_total{worker=\"server\"} 0",
        "farref_served_total{worker=\"server\",function=\"metrics::square_root\"} 103",
    ];
    show("server", &servers, "farref_served", &served)
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["client", "server"])? {
        println!("the counts are right, both workers have ended");
        return Ok(());
    }
    // Before the worker joins, which registers what it counts with whatever is installed then.
    let exporter = PrometheusBuilder::new().install_recorder()?;
    EXPORTER.set(exporter).ok().context("a second exporter")?;
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "client" {
        client(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `client` works
    }
    Ok(())
}
