//! `farref dashboard`: the workers of a group, live, as a page in a browser.
//!
//! | part | job |
//! | --- | --- |
//! | [`server`] | who is shown what |
//! | [`http`] | requests and answers |
//! | [`assets`] | the page's own files |
//! | [`state`] | all that is kept of what was seen |
//! | [`data`] | what each view shows |
//! | [`history`] | how fast everything went |
//! | [`membership`] | who came and who went |
//! | [`cycles`] | calls that wait for each other |
//! | [`leaks`] | references by source line, and whether they become more |
//! | [`timeline`] | calls of all workers on one line of time |
//! | [`metrics`] | what was counted, for whoever collects it: [`prometheus`], [`otlp`] |

mod assets;
mod cycles;
mod data;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod history;
mod http;
mod leaks;
mod membership;
mod metrics;
mod otlp;
mod prometheus;
mod server;
mod state;
mod timeline;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use http::{Request, Response};
use otlp::Collector;
use server::{Door, Source};
use state::State;

use crate::view::fetch::{self, Update};
use crate::view::place::{Looking, interval};
use crate::view::text::clean;

/// How many calls of each worker are fetched with each look.
const CALLS: usize = 4096;
const JSON: &str = "application/json";

/// Serves a page that shows what running workers hold, do and wait for
///
/// Looks at every worker of a group from outside, again and again: nothing is changed, nobody waits.
/// The page is for this machine only, and for whoever has its address, which is printed.
/// ADDR is where the workers meet, or the address of one of them: host:port, unix:name or file:///path.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref dashboard 127.0.0.1:29500                  prints the address to open
  farref dashboard 127.0.0.1:29500 --port 8080      always at the same port
  FARREF_TOKEN=secret farref dashboard node0:29500  a group with a token
  farref dashboard node0:29500 --otlp http://127.0.0.1:4318    to a collector as well

Prometheus finds metrics below the printed address, at metrics")]
pub(crate) struct Arguments {
    /// Where the workers meet, or one of them
    #[arg(value_name = "ADDR")]
    address: String,

    /// The port of 127.0.0.1 to serve the page at; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,

    /// The key in the page's address, 16 to 128 letters and digits, in place of a new one each time.
    /// Better set FARREF_DASHBOARD_KEY: others on this machine can see command lines
    #[arg(long, value_name = "KEY", value_parser = server::parse_key)]
    key: Option<String>,

    /// Send metrics and spans to a collector of OpenTelemetry (OTLP over HTTP)
    #[arg(long, value_name = "http://HOST:PORT", value_parser = Collector::parse)]
    otlp: Option<Collector>,

    /// How often to look: 0.05 to 10
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    #[command(flatten)]
    looking: Looking,
}

/// What the page asks for.
struct Shown(Arc<Mutex<State>>);

impl Shown {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Shown {
    fn find(&self, name: &str, request: &Request) -> Option<Response> {
        match name {
            "data" => {
                let view = request.parameter("view").unwrap_or_default();
                let search = request.parameter("q").unwrap_or_default();
                let data = data::view(&self.lock(), &view, &search);
                let data = data?;
                Some(Response::new(JSON, data.to_string()))
            }
            "trace.json" => {
                let trace = self.lock().timeline.chrome();
                let mut response = Response::new(JSON, trace.to_string());
                response.file_name = Some("farref-trace.json");
                Some(response)
            }
            "metrics" => {
                let text = prometheus::write(&metrics::families(&self.lock()));
                Some(Response::new(prometheus::CONTENT_TYPE, text))
            }
            _ => None,
        }
    }
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let key = match (arguments.key, std::env::var("FARREF_DASHBOARD_KEY")) {
        (Some(key), _) => key,
        (None, Ok(key)) => server::parse_key(&key)
            .map_err(|why| anyhow::anyhow!("FARREF_DASHBOARD_KEY cannot be used: {why}"))?,
        (None, Err(_)) => server::new_key()?,
    };
    // Before anything is served: the address may be mistyped, the token another.
    let observer = arguments
        .looking
        .observer(&arguments.address, 1000)?
        .calls(CALLS);
    let group = runtime.block_on(observer.group(&arguments.address));
    let group = group.map_err(|error| anyhow::Error::msg(clean(&error.to_string())))?;

    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    let listener = runtime
        .block_on(TcpListener::bind(here))
        .with_context(|| format!("cannot serve the page at {here}; see --port"))?;
    let door = Door::new(listener.local_addr()?, key);
    println!("{}", door.url());
    eprintln!(
        "farref: the group at {} is shown there, until Ctrl-C",
        clean(&arguments.address)
    );

    let state = State::new(&clean(&arguments.address), arguments.interval);
    let state = Arc::new(Mutex::new(state));
    let shown = Arc::new(Shown(Arc::clone(&state)));
    runtime.spawn(server::serve(listener, door, shown.clone()));
    if let Some(collector) = arguments.otlp {
        runtime.spawn(otlp::export(
            collector,
            Arc::clone(&state),
            arguments.interval,
        ));
    }
    let (sender, mut updates) = mpsc::channel(fetch::WAITING);
    runtime.spawn(fetch::signals(sender.clone()));
    runtime.spawn(fetch::watch(
        observer,
        arguments.address,
        group,
        arguments.interval,
        sender,
    ));
    while let Some(update) = updates.blocking_recv() {
        if matches!(update, Update::End) {
            break;
        }
        let at = state::now();
        shown.lock().update(update, at);
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}
