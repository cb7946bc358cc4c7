//! What the other processes run: a worker that serves until the group shuts down.

use std::time::Duration;

use anyhow::Context as _;
use farref::Worker;
use metrics_util::debugging::{DebuggingRecorder, Snapshotter};

/// Says that this process is a worker; its value is how it is set up.
pub(crate) const ROLE: &str = "FARREF_TEST_ROLE";

/// The exit code of a worker that was declared dead and was allowed to be.
pub(crate) const EVICTED: i32 = 70;

/// And of one that saw no majority of its group any more.
pub(crate) const IN_MINORITY: i32 = 71;

/// For whoever looks for the cause of a failure: `RUST_LOG=farref=debug`.
pub(crate) fn log_if_asked() {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
}

/// Whether this process was started as a worker.
pub(crate) fn is_one() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// How the worker that this process is was set up.
pub(crate) fn options() -> anyhow::Result<crate::Options> {
    Ok(serde_json::from_str(&std::env::var(ROLE)?)?)
}

/// Joins as the environment says, serves, and ends with the group.
pub(crate) fn run() -> anyhow::Result<()> {
    let options = options()?;
    let mut runtime = match options.runtime_threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime
        .worker_threads(options.runtime_threads)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let name = std::env::var("FARREF_NAME").unwrap_or_default();
        let builder = options.route(&name, options.apply(Worker::from_env()));
        let refusals = options.counts_refusals.then(Refusals::count).transpose()?;
        let me = builder.join().await;
        let me = me.context("joining")?;
        if options.calls_everyone {
            match crate::functions::call_everyone::on(&me.me()).await {
                Ok(called) => anyhow::ensure!(
                    options.leaves || called as usize == me.peers().len(),
                    "{called} answered rightly"
                ),
                // Others who come and leave may be gone already.
                Err(_) if options.leaves => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(file) = &options.serves_after {
            while !std::path::Path::new(file).exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let ended = match options.leaves {
            true => me.leave().await,
            false => me.serve().await,
        };
        if let Some(refusals) = refusals {
            refusals.report();
        }
        crate::functions::finish_background().await;
        // A worker that was declared dead while it was stopped has been told so by its test. What it held is worthless.
        match &ended {
            Err(farref::Error::Evicted { .. }) if options.may_be_evicted => {
                std::process::exit(EVICTED)
            }
            Err(farref::Error::Minority { .. }) if options.may_be_evicted => {
                std::process::exit(IN_MINORITY)
            }
            _ => {}
        }
        let left = crate::functions::held_count();
        anyhow::ensure!(
            left == 0,
            "{left} references are still held by this process: {}",
            ended.map_or_else(|error| error.to_string(), |()| "it ended well".to_owned())
        );
        ended.context("shutting down")
    })
}

/// Counts the connections that this process has refused.
struct Refusals(Snapshotter);

impl Refusals {
    fn count() -> anyhow::Result<Self> {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install()?;
        Ok(Self(snapshotter))
    }

    /// Writes them where complaints go.
    fn report(self) {
        for (key, _, _, value) in self.0.snapshot().into_vec() {
            if key.key().name() == "farref_refused_connections_total" {
                let labels: Vec<_> = key.key().labels().collect();
                eprintln!("refused connections: {value:?} of {labels:?}");
            }
        }
    }
}
