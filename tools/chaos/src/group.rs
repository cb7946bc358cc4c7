//! The processes of a run: started, told what to do, heard, signalled.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use farref::StoreServer;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::history::{self, Event, Life};
use super::proxy::{Door, Proxy};
use super::settings::{LANES, PYTHON, RUST, Settings};
use super::worker::{JOINED, Order, QUIET, SETTLED};
use farref_cli::tools::{GroupTls, TLS_VARIABLES};
use farref_group::{GroupToken, TOKEN_VARIABLE, threads_to_limit};

/// The time limit of a call, unless it is to be too short.
const LIMIT: Duration = Duration::from_secs(30);

/// Variables of launchers that would lead Python workers elsewhere.
const FOREIGN: [&str; 15] = [
    "FARREF_NAME",
    "FARREF_RENDEZVOUS",
    "FARREF_RANK",
    "FARREF_WORLD_SIZE",
    "FARREF_ADVERTISE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK",
    "JOB_COMPLETION_INDEX",
];

/// What Python workers run.
const PYTHON_WORKER: &str = include_str!("farref_chaos.py");

/// How a run is set up.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) workers: u32,
    /// So many of them, the last ones, are Python's.
    pub(super) python: u32,
    pub(super) python_program: PathBuf,
    pub(super) tls: bool,
    /// Where histories are.
    pub(super) folder: PathBuf,
    pub(super) peer_timeout: Duration,
    pub(super) operations_per_second: u32,
}

/// All workers of a run.
pub(super) struct Group {
    setup: Setup,
    pub(super) members: Vec<Member>,
    proxy: Proxy,
    store: StoreServer,
    token: GroupToken,
    certificates: Option<GroupTls>,
    lives: Life,
    happenings: mpsc::UnboundedSender<Happening>,
}

/// A worker, whether or not it is there at the moment.
pub(super) struct Member {
    pub(super) name: String,
    python: bool,
    pub(super) process: Option<Process>,
}

/// One life of a worker.
pub(super) struct Process {
    pub(super) life: Life,
    id: Pid,
    orders: ChildStdin,
    /// Where its connections come by, if they do.
    pub(super) door: Option<Door>,
    pub(super) joined: bool,
    pub(super) quiet: bool,
    pub(super) settled: bool,
    /// Whether it was told to leave.
    pub(super) leaves: bool,
    /// Whether it was killed.
    pub(super) killed: bool,
}

/// What is heard of a process.
#[derive(Debug)]
pub(super) enum Happening {
    Said { life: Life, word: String },
    Gone { life: Life, code: Option<i32> },
}

impl Group {
    /// Prepares everything; starts nobody.
    pub(super) async fn prepare(
        setup: Setup,
    ) -> anyhow::Result<(Self, mpsc::UnboundedReceiver<Happening>)> {
        let store = StoreServer::bind("127.0.0.1:0").await;
        let store = store.context("cannot listen on 127.0.0.1, where the workers would meet")?;
        let port = store.local_addr().port();
        let certificates = match setup.tls {
            true => {
                let any = None::<std::iter::Empty<String>>;
                Some(GroupTls::make("127.0.0.1", port, any)?)
            }
            false => None,
        };
        if setup.python > 0 {
            let file = setup.folder.join("farref_chaos.py");
            std::fs::write(&file, PYTHON_WORKER)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        let rust = setup.workers.saturating_sub(setup.python);
        let member = |index| {
            let python = index >= rust;
            let kind = if python { PYTHON } else { RUST };
            Member {
                name: format!("{kind}{index}"),
                python,
                process: None,
            }
        };
        let members = (0..setup.workers).map(member).collect();
        let (happenings, heard) = mpsc::unbounded_channel();
        let group = Self {
            setup,
            members,
            proxy: Proxy::start()?,
            store,
            token: GroupToken::make()?,
            certificates,
            lives: 0,
            happenings,
        };
        Ok((group, heard))
    }

    /// Starts a life of a worker, and says which.
    pub(super) fn start(&mut self, index: usize) -> anyhow::Result<Life> {
        self.lives += 1;
        let life = self.lives;
        let python = self.members[index].python;
        let name = self.members[index].name.clone();
        let door = (!python).then(|| self.proxy.open()).transpose()?;
        let settings = self.settings(&name, life, door.as_ref());
        let mut command = self.command(&settings, python)?;
        let errors = self.setup.folder.join(format!("life-{life}.stderr"));
        let errors =
            File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        history::note(Event::Started {
            life,
            worker: name.clone(),
            python,
        });
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            // Ctrl-C at a terminal is for the driver, which tells them what to do.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                let program = command.as_std().get_program().display();
                format!("cannot start {program} for {name}")
            })?;
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let id = id.with_context(|| format!("{name} ended at once"))?;
        let orders = child.stdin.take().context("no way to the worker")?;
        let words = child.stdout.take().context("no way from the worker")?;
        tokio::spawn(hear(life, child, words, self.happenings.clone()));
        self.members[index].process = Some(Process {
            life,
            id,
            orders,
            door,
            joined: false,
            quiet: false,
            settled: false,
            leaves: false,
            killed: false,
        });
        Ok(life)
    }

    fn settings(&self, name: &str, life: Life, door: Option<&Door>) -> Settings {
        let lanes = u64::from(LANES) * u64::from(self.setup.workers);
        Settings {
            worker: name.to_owned(),
            life,
            seed: self.setup.seed,
            folder: self.setup.folder.clone(),
            rendezvous: format!("tcp://{}", self.store.local_addr()),
            route: door.map(|door| door.route),
            peer_timeout_ms: self.setup.peer_timeout.as_millis() as u64,
            limit_ms: LIMIT.as_millis() as u64,
            pause_us: lanes * 1_000_000 / u64::from(self.setup.operations_per_second),
        }
    }

    fn command(&self, settings: &Settings, python: bool) -> anyhow::Result<Command> {
        let settings = serde_json::to_string(settings)?;
        let mut command = match python {
            true => {
                let mut command = Command::new(&self.setup.python_program);
                let program = "import farref_chaos; farref_chaos.main()";
                command.args(["-c", program, &settings]);
                // Whatever leads to the package `farref` is to go on doing so.
                let others = std::env::var_os("PYTHONPATH").unwrap_or_default();
                let others = std::env::split_paths(&others);
                let folders = std::iter::once(self.setup.folder.clone()).chain(others);
                let folders = std::env::join_paths(folders);
                command.env(
                    "PYTHONPATH",
                    folders.context("the folder of histories has a `:`")?,
                );
                command
            }
            false => {
                let program = std::env::current_exe().context("cannot find this program again")?;
                let mut command = Command::new(program);
                command.args(["--settings", &settings]);
                command
            }
        };
        for variable in FOREIGN.into_iter().chain(TLS_VARIABLES) {
            command.env_remove(variable);
        }
        // Matrix products share the processors.
        for variable in threads_to_limit(self.setup.workers) {
            command.env(variable, "1");
        }
        command.env(TOKEN_VARIABLE, self.token.secret());
        command.envs(self.certificates.iter().flat_map(|made| made.variables(0)));
        Ok(command)
    }

    /// The worker that a life is of, if it is the present one.
    pub(super) fn find(&self, life: Life) -> Option<usize> {
        let is_it = |process: &Process| process.life == life;
        let mut members = self.members.iter();
        members.position(|member| member.process.as_ref().is_some_and(is_it))
    }

    /// Tells a worker something. One that is just going does not hear it.
    pub(super) async fn tell(&mut self, index: usize, order: Order) {
        if let Some(process) = &mut self.members[index].process {
            let line = format!("{}\n", order.word());
            let _ = process.orders.write_all(line.as_bytes()).await;
            let _ = process.orders.flush().await;
        }
    }

    /// Sends a signal to a worker, if it is there. One that is just going may be gone.
    pub(super) fn signal(&self, index: usize, signal: Signal) {
        if let Some(process) = &self.members[index].process {
            let _ = kill_process(process.id, signal);
        }
    }

    /// How many workers are there and have joined.
    pub(super) fn present(&self) -> usize {
        let is_there = |member: &&Member| {
            let process = member.process.as_ref();
            process.is_some_and(|process| process.joined)
        };
        self.members.iter().filter(is_there).count()
    }
}

impl Process {
    /// Keeps in mind what it has said.
    pub(super) fn said(&mut self, word: &str) {
        match word {
            JOINED => self.joined = true,
            QUIET => self.quiet = true,
            SETTLED => self.settled = true,
            // Nothing that is known; a Python worker's program may print.
            _ => {}
        }
    }
}

/// Tells what a process says, and how it ends.
async fn hear(
    life: Life,
    mut child: Child,
    words: ChildStdout,
    happenings: mpsc::UnboundedSender<Happening>,
) {
    let mut lines = BufReader::new(words).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let word = line.trim().to_owned();
        let _ = happenings.send(Happening::Said { life, word });
    }
    let ended = child.wait().await;
    let code = ended.ok().and_then(|status| status.code());
    let _ = happenings.send(Happening::Gone { life, code });
}
