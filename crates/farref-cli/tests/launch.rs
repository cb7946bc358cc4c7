//! `farref launch` with real processes: small shell programs as ranks.
//!
//! Every launcher carries a mark in its environment, which all its descendants inherit. A test is over
//! when no process with its mark is left.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use farref::Worker;
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};

/// How long something may take that should not take long.
const PATIENCE: Duration = Duration::from_secs(60);
const MARK: &str = "FARREF_LAUNCH_TEST";
/// Tells this program that it is started as a rank of farref.
const RANK_PROGRAM: &str = "FARREF_LAUNCH_TEST_RANK";
/// Tells this program to run its arguments, and to leave zombies to others.
#[cfg(target_os = "linux")]
const NEGLIGENT_PARENT: &str = "FARREF_LAUNCH_TEST_NEGLIGENT_PARENT";

/// Makes a test of each function, under its own name.
macro_rules! trials {
    ($($(#[$meta:meta])* $test:ident,)*) => {
        vec![$($(#[$meta])* Trial::test(stringify!($test), || {
            $test().map_err(|error| Failed::from(format!("{error:?}")))
        })),*]
    };
}

fn main() -> anyhow::Result<()> {
    if std::env::var_os(RANK_PROGRAM).is_some() {
        return be_rank();
    }
    #[cfg(target_os = "linux")]
    if std::env::var_os(NEGLIGENT_PARENT).is_some() {
        return be_negligent_parent();
    }
    let trials = trials![
        every_rank_gets_its_variables,
        every_group_gets_a_token_that_nobody_else_has,
        who_started_a_group_can_look_into_it_and_others_cannot,
        one_of_several_ranks_computes_with_one_thread_unless_told_otherwise,
        stdout_and_stderr_stay_apart,
        lines_of_different_ranks_never_mix,
        any_bytes_pass_and_a_line_without_end_is_broken,
        a_carriage_return_ends_a_line,
        a_line_that_takes_its_time_is_shown_as_far_as_it_is,
        colours_are_there_when_wanted,
        the_exit_code_is_that_of_who_failed_first,
        who_does_not_end_is_killed_after_the_grace_period,
        a_signal_reaches_every_child_and_grandchild,
        an_interrupt_ends_the_run_and_a_second_one_kills,
        what_a_rank_leaves_behind_is_ended_with_it,
        #[cfg(target_os = "linux")]
        orphans_are_reaped_where_nobody_else_does_it,
        #[cfg(target_os = "linux")]
        the_first_process_of_a_container_ends,
        #[cfg(target_os = "linux")]
        orphans_that_left_their_group_are_reaped,
        #[cfg(target_os = "linux")]
        what_cannot_be_killed_is_left_behind,
        #[cfg(target_os = "linux")]
        children_die_with_a_launcher_that_is_killed,
        a_failed_rank_is_started_again_at_most_k_times,
        a_rank_that_recovers_finds_its_run_and_is_no_failure,
        a_rank_that_fails_when_all_others_have_ended_well_is_not_started_again,
        all_are_started_again_when_asked_for,
        closed_output_is_closed_for_the_ranks_too,
        a_run_ends_when_told_to_although_nobody_reads_its_output,
        programs_of_torch_are_started_on_farref,
        a_missing_program_is_one_clear_line,
        what_does_not_fit_together_is_one_clear_line,
        two_launchers_make_one_group,
        a_failure_on_one_node_ends_the_run_on_all,
        a_stop_of_one_node_is_a_stop_of_all_and_no_failure,
        a_node_whose_ranks_are_well_goes_on_without_the_store,
        rank_0_of_farref_crashes_and_comes_back_to_its_group,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// One or more launches of shell scripts, in a directory of their own.
struct Launch {
    mark: String,
    directory: PathBuf,
}

impl Launch {
    fn new() -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(format!("farref-launch-{mark}"));
        std::fs::create_dir_all(&directory)?;
        Ok(Self { mark, directory })
    }

    fn command(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
        command
            .arg("launch")
            .args(options)
            .arg("--")
            .args(program)
            .current_dir(&self.directory)
            .env(MARK, &self.mark)
            .env_remove("NO_COLOR")
            // As if the user had chosen: otherwise the launcher says that it has.
            .env("OMP_NUM_THREADS", "1")
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a script in every rank until the launcher ends.
    fn sh(&self, options: &[&str], script: &str) -> anyhow::Result<Output> {
        Ok(self.command(options, &["sh", "-c", script]).output()?)
    }

    fn start(&self, options: &[&str], script: &str) -> anyhow::Result<Running> {
        let mut child = self.command(options, &["sh", "-c", script]).spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let lines = BufReader::new(stdout);
        Ok(Running { child, lines })
    }

    /// Asserts that no process is left.
    fn finish(self) -> anyhow::Result<()> {
        let left = self.marked()?;
        ensure!(left.is_empty(), "processes are left: {left:?}");
        Ok(())
    }

    /// The ids of all living processes that carry the mark.
    fn marked(&self) -> anyhow::Result<Vec<String>> {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            // Whoever ends meanwhile has nothing to read, and neither has a zombie.
            if let Ok(environment) = std::fs::read(entry.path().join("environ"))
                && environment.split(|byte| *byte == 0).any(|one| one == mark)
            {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(found)
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        for id in self.marked().unwrap_or_default() {
            if let Some(pid) = id.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Waits for a program, for as long as it may reasonably take.
fn output_in_time(child: Child) -> anyhow::Result<Output> {
    in_time(move || child.wait_with_output())?.context("cannot wait for it")
}

/// Does something that should be over soon.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    is_done.recv_timeout(PATIENCE).context("it does not end")
}

/// Waits for something that nobody tells of.
fn until(what: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A launcher at work.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line)
    }

    /// Reads until `count` lines contain `text`.
    fn await_lines(&mut self, text: &str, count: usize) -> anyhow::Result<()> {
        let mut seen = 0;
        while seen < count {
            let mut line = String::new();
            let size = self.lines.read_line(&mut line)?;
            ensure!(size > 0, "the output ended before {text:?} came");
            seen += usize::from(line.contains(text));
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id())?;
        kill_process(Pid::from_raw(pid).context("no process id")?, signal)?;
        Ok(())
    }

    /// The exit code, the rest of stdout, and stderr.
    fn end(mut self) -> anyhow::Result<(Option<i32>, String, String)> {
        let mut stdout = String::new();
        self.lines.read_to_string(&mut stdout)?;
        let mut stderr = String::new();
        if let Some(mut stream) = self.child.stderr.take() {
            stream.read_to_string(&mut stderr)?;
        }
        Ok((self.child.wait()?.code(), stdout, stderr))
    }
}

fn sorted(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

fn every_rank_gets_its_variables() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \
        $TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RESTART_COUNT ${FARREF_NAME-none} \
        ${FARREF_RANK-none} ${MASTER_PORT:+port} ${TORCHELASTIC_RUN_ID:+run}";
    let mut command = launch.command(&["-n", "3"], &["sh", "-c", script]);
    // What others said before is not for these ranks.
    command.env("FARREF_NAME", "stale").env("FARREF_RANK", "7");
    let output = command.output()?;
    assert_eq!(
        sorted(&output.stdout),
        [0, 1, 2].map(|rank| {
            format!("[{rank}] {rank} 3 {rank} 3 0 127.0.0.1 True 0 none none port run")
        })
    );
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));

    let script = "echo $RANK $WORLD_SIZE $FARREF_NAME";
    let output = launch.sh(&["--names", "ps,trainer0"], script)?;
    let expected = ["[ps] 0 2 ps", "[trainer0] 1 2 trainer0"];
    assert_eq!(sorted(&output.stdout), expected);
    let output = launch.sh(&["-n", "3", "--names", "ps,t{rank}"], "echo $FARREF_NAME")?;
    assert_eq!(sorted(&output.stdout), ["[ps] ps", "[t1] t1", "[t2] t2"]);
    launch.finish()
}

fn every_group_gets_a_token_that_nobody_else_has() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "echo $FARREF_TOKEN; tr '\\0' ' ' < /proc/$PPID/cmdline; echo";
    let run = |own: Option<&str>| {
        let mut command = launch.command(&["-n", "2"], &["sh", "-c", script]);
        match own {
            Some(own) => command.env("FARREF_TOKEN", own),
            None => command.env_remove("FARREF_TOKEN"),
        };
        command.output()
    };
    let tokens = |output: &Output| -> Vec<String> {
        let lines = sorted(&output.stdout).into_iter();
        let lines = lines.filter_map(|line| Some(line.split_once(' ')?.1.to_owned()));
        lines.filter(|line| !line.contains("launch")).collect()
    };
    let (first, second) = (run(None)?, run(Some(""))?);
    for output in [&first, &second] {
        let found = tokens(output);
        let [one, other] = &found[..] else {
            anyhow::bail!("{found:?}");
        };
        assert_eq!(one, other, "the ranks of a group have one");
        let is_token = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(is_token(one), "{one}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            stdout.matches(one.as_str()).count(),
            2,
            "in no command line"
        );
        assert_eq!(stderr(output), "");
    }
    assert_ne!(tokens(&first), tokens(&second));
    assert_eq!(tokens(&run(Some("my own"))?), ["my own", "my own"]);
    launch.finish()
}

fn who_started_a_group_can_look_into_it_and_others_cannot() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let myself = std::env::current_exe()?;
    let myself = myself.to_str().context("a path that is no text")?;
    let place = format!("127.0.0.1:{}", free_port()?);
    let options = ["--names", "first,second", "--rendezvous", &place];
    let mut child = launch
        .command(&options, &[myself])
        .env(RANK_PROGRAM, "watched")
        .env_remove("FARREF_TOKEN")
        .env("XDG_RUNTIME_DIR", &launch.directory)
        .spawn()?;
    let stdout = child.stdout.take().context("no stdout")?;
    let mut running = Running {
        child,
        lines: BufReader::new(stdout),
    };
    running.await_lines("all are here", 2)?;
    let inspect = |runtime_directory: &std::path::Path| {
        Command::new(env!("CARGO_BIN_EXE_farref"))
            .args(["inspect", &place])
            .env_remove("FARREF_TOKEN")
            .env("XDG_RUNTIME_DIR", runtime_directory)
            .output()
    };
    let kept = launch.directory.join("farref");
    let files: Vec<_> = std::fs::read_dir(&kept)?.collect::<io::Result<_>>()?;
    let [file] = &files[..] else {
        anyhow::bail!("{files:?}");
    };
    let mode = |path: &std::path::Path| -> io::Result<u32> {
        Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
    };
    assert_eq!((mode(&kept)?, mode(&file.path())?), (0o700, 0o600));
    let seen = inspect(&launch.directory)?;
    let text = String::from_utf8_lossy(&seen.stdout);
    assert!(seen.status.success(), "{text}{}", stderr(&seen));
    assert!(text.contains("first") && text.contains("second"), "{text}");
    // Somebody who cannot read the file.
    let elsewhere = launch.directory.join("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let seen = inspect(&elsewhere)?;
    let text = String::from_utf8_lossy(&seen.stdout);
    assert!(!seen.status.success(), "{text}");
    assert!(text.contains("set FARREF_TOKEN"), "{text}{}", stderr(&seen));

    std::fs::write(launch.directory.join("over"), "")?;
    let (code, _, text) = running.end()?;
    assert_eq!(code, Some(0), "{text}");
    assert!(!file.path().exists(), "the token is gone with its group");
    launch.finish()
}

fn one_of_several_ranks_computes_with_one_thread_unless_told_otherwise() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "echo ${OMP_NUM_THREADS-unset} ${RAYON_NUM_THREADS-unset}";
    let run = |ranks, threads: Option<&str>| {
        let mut command = launch.command(&["-n", ranks], &["sh", "-c", script]);
        command.env_remove("RAYON_NUM_THREADS");
        match threads {
            Some(threads) => command.env("OMP_NUM_THREADS", threads),
            None => command.env_remove("OMP_NUM_THREADS"),
        };
        command.output()
    };
    let output = run("2", None)?;
    assert_eq!(sorted(&output.stdout), ["[0] 1 1", "[1] 1 1"]);
    let text = stderr(&output);
    let said = "farref launch: OMP_NUM_THREADS and RAYON_NUM_THREADS are 1 for each of 2 ranks";
    assert!(
        text.starts_with(said) && text.lines().count() == 1,
        "{text}"
    );
    let output = run("2", Some("3"))?;
    assert_eq!(sorted(&output.stdout), ["[0] 3 unset", "[1] 3 unset"]);
    assert_eq!(stderr(&output), "");
    // Who is alone has the machine, and is told nothing.
    let output = run("1", None)?;
    assert_eq!(sorted(&output.stdout), ["[0] unset unset"]);
    assert_eq!(stderr(&output), "");
    launch.finish()
}

fn stdout_and_stderr_stay_apart() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let output = launch.sh(&["-n", "2"], "echo out; echo err >&2")?;
    assert_eq!(sorted(&output.stdout), ["[0] out", "[1] out"]);
    assert_eq!(sorted(&output.stderr), ["[0] err", "[1] err"]);
    launch.finish()
}

fn lines_of_different_ranks_never_mix() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "i=0; while [ $i -lt 2000 ]; do printf '%s' $RANK-; echo $i-$RANK; i=$((i+1)); \
        done; printf last-$RANK";
    let output = launch.sh(&["-n", "4"], script)?;
    let text = String::from_utf8(output.stdout)?;
    let mut next = [0; 4];
    let mut last = 0;
    for line in text.lines() {
        let rank: usize = line[1..2].parse()?;
        if line == format!("[{rank}] last-{rank}") {
            last += 1;
        } else {
            assert_eq!(line, format!("[{rank}] {rank}-{}-{rank}", next[rank]));
            next[rank] += 1;
        }
    }
    assert_eq!((next, last), ([2000; 4], 4));
    assert!(text.ends_with('\n'), "a last line without an end gets one");
    launch.finish()
}

fn any_bytes_pass_and_a_line_without_end_is_broken() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "printf '\\377\\000\\n'; head -c 200000 /dev/zero";
    let output = launch.sh(&["-n", "1"], script)?;
    let lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines[0], b"[0] \xff\x00");
    let sizes: Vec<usize> = lines[1..].iter().map(|line| line.len()).collect();
    assert_eq!(sizes, [65540, 65540, 65540, 200_000 - 3 * 65536 + 4, 0]);
    launch.finish()
}

fn a_carriage_return_ends_a_line() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // A progress bar that never ends its line, as long as the rank runs.
    let script = "printf '\\r10%%\\r20%%\\r'; while [ ! -e over ]; do sleep 0.02; done; \
        printf '30%%\\r\\nend\\r\\n'";
    let mut running = launch.start(&["-n", "1"], script)?;
    let mut lines = running.lines;
    let (first, lines) = in_time(move || {
        let mut two = String::new();
        let read = lines
            .read_line(&mut two)
            .and_then(|_| lines.read_line(&mut two));
        (read.map(|_| two), lines)
    })?;
    assert_eq!(first?, "[0] 10%\n[0] 20%\n");
    std::fs::write(launch.directory.join("over"), "")?;
    running.lines = lines;
    let (code, stdout, _) = running.end()?;
    assert_eq!((code, stdout.as_str()), (Some(0), "[0] 30%\n[0] end\n"));
    launch.finish()
}

fn a_line_that_takes_its_time_is_shown_as_far_as_it_is() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "printf 'Loading ... '; while [ ! -e over ]; do sleep 0.02; done; echo done";
    let mut running = launch.start(&["-n", "1"], script)?;
    let mut lines = running.lines;
    let (begun, lines) = in_time(move || {
        let mut begun = [0; 16];
        (lines.read_exact(&mut begun).map(|()| begun), lines)
    })?;
    assert_eq!(&begun?, b"[0] Loading ... ");
    std::fs::write(launch.directory.join("over"), "")?;
    running.lines = lines;
    // Nobody else has printed since: the line goes on where it was.
    assert_eq!(running.end()?.1, "done\n");

    // Another rank's line breaks it off, and the rest has a line of its own.
    let script = "if [ $RANK = 1 ]; then while [ ! -e begun ]; do sleep 0.02; done; echo other; exit; fi; \
        printf 'Loading ... '; while [ ! -e end ]; do sleep 0.02; done; echo done";
    let launch = Launch::new()?;
    let mut running = launch.start(&["-n", "2"], script)?;
    let mut begun = [0; 16];
    running.lines.read_exact(&mut begun)?;
    std::fs::write(launch.directory.join("begun"), "")?;
    assert_eq!(running.line()? + &running.line()?, "\n[1] other\n");
    std::fs::write(launch.directory.join("end"), "")?;
    assert_eq!(running.end()?.1, "[0] done\n");
    launch.finish()
}

fn colours_are_there_when_wanted() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let plain = launch.sh(&["-n", "2"], "echo x")?;
    assert!(!plain.stdout.contains(&0x1b), "a pipe is no terminal");
    let colored = launch.sh(&["-n", "2", "--color", "always"], "echo x")?;
    assert_eq!(
        sorted(&colored.stdout),
        ["\x1b[0;33m[1]\x1b[0m x", "\x1b[0;36m[0]\x1b[0m x"]
    );
    launch.finish()
}

fn the_exit_code_is_that_of_who_failed_first() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // The others end in consequence, with codes of their own.
    let script = "trap 'exit 9' TERM; if [ $RANK = 1 ]; then exit 7; fi; \
        while :; do sleep 0.05; done";
    let output = launch.sh(&["--names", "a,b,c"], script)?;
    assert_eq!(output.status.code(), Some(7));
    let text = stderr(&output);
    let last = text.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("farref launch: b (rank 1) failed first: exit code 7 after ")
            && last.ends_with(" s; the others were stopped"),
        "{text}"
    );

    let script = "[ $RANK = 0 ] && kill -9 $$; exec sleep 600";
    let output = launch.sh(&["-n", "2"], script)?;
    assert_eq!(output.status.code(), Some(128 + 9));
    let text = stderr(&output);
    assert!(
        text.contains("rank 0 failed first: killed by SIGKILL after ") && text.lines().count() == 1,
        "{text}"
    );
    launch.finish()
}

fn who_does_not_end_is_killed_after_the_grace_period() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "trap '' TERM; : > deaf$RANK; if [ $RANK = 1 ]; then \
            while [ ! -e deaf0 ]; do sleep 0.02; done; exit 3; fi; \
        while :; do sleep 600; done";
    let output = launch.sh(&["-n", "2", "--grace", "0.2"], script)?;
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    assert!(
        text.contains("still there after 0.2 s: rank 0; killing"),
        "{text}"
    );
    launch.finish()
}

fn a_signal_reaches_every_child_and_grandchild() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // Each rank has a child of its own; both tell of every signal.
    let script = "tell() { for s in USR1 USR2; do trap \"echo $1 got $s\" $s; done; \
            trap \"echo $1 ends; exit 0\" TERM; echo $1 ready; while :; do sleep 0.05; done; }; \
        (tell grandchild) & tell child";
    let mut running = launch.start(&["-n", "2"], script)?;
    running.await_lines("ready", 4)?;
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        running.signal(signal)?;
        running.await_lines(&format!("got {name}"), 4)?;
    }
    running.signal(Signal::TERM)?;
    let (code, stdout, stderr) = running.end()?;
    // All have ended in order, as they were asked to.
    assert_eq!(stdout.matches(" ends").count(), 4, "{stdout}");
    // Before it stands what the shells say about the ends of their `sleep`s.
    assert!(
        stderr.ends_with("farref launch: stopped by SIGTERM\n"),
        "{stderr}"
    );
    assert_eq!(code, Some(0));
    launch.finish()
}

fn an_interrupt_ends_the_run_and_a_second_one_kills() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // Not left to the default: whoever runs the tests in the background may have it ignored.
    let script = "trap 'echo over; exit 4' INT; echo ready; while :; do sleep 0.05; done";
    let mut running = launch.start(&["-n", "2"], script)?;
    running.await_lines("ready", 2)?;
    running.signal(Signal::INT)?;
    let (code, _, stderr) = running.end()?;
    assert!(
        stderr.ends_with("farref launch: stopped by SIGINT\n"),
        "{stderr}"
    );
    assert_eq!(code, Some(130));

    let script = "trap 'echo deaf' INT; echo ready; while :; do sleep 0.05; done";
    let mut running = launch.start(&["-n", "2", "--grace", "100000"], script)?;
    running.await_lines("ready", 2)?;
    running.signal(Signal::INT)?;
    running.await_lines("deaf", 2)?;
    running.signal(Signal::INT)?;
    assert_eq!(running.end()?.0, Some(130));
    launch.finish()
}

fn what_a_rank_leaves_behind_is_ended_with_it() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let output = launch.sh(&["-n", "2"], "sleep 600 & echo done")?;
    assert_eq!(sorted(&output.stdout), ["[0] done", "[1] done"]);
    assert_eq!(output.status.code(), Some(0));
    launch.finish()
}

/// Runs a program as a process does that adopts all orphans below it and never looks at them, such as
/// a careless first process of a container.
#[cfg(target_os = "linux")]
fn be_negligent_parent() -> anyhow::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut words = std::env::args_os().skip(1);
    let mut command = Command::new(words.next().context("what to run?")?);
    let status = command.args(words).env_remove(NEGLIGENT_PARENT).status()?;
    std::process::exit(status.code().unwrap_or(255));
}

/// A rank that leaves a child behind, which does not even end when it is asked to.
#[cfg(target_os = "linux")]
const LEAVES_A_CHILD: &str = "sh -c 'trap \"\" TERM; : > deaf; while :; do sleep 600; done' & \
    while [ ! -e deaf ]; do sleep 0.02; done; echo done";

#[cfg(target_os = "linux")]
fn orphans_are_reaped_where_nobody_else_does_it() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let launcher = launch.command(
        &["-n", "1", "--grace", "0.2"],
        &["sh", "-c", LEAVES_A_CHILD],
    );
    let child = Command::new(std::env::current_exe()?)
        .arg(launcher.get_program())
        .args(launcher.get_args())
        .current_dir(&launch.directory)
        .env(MARK, &launch.mark)
        .env(NEGLIGENT_PARENT, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = output_in_time(child)?;
    assert_eq!(sorted(&output.stdout), ["[0] done"], "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
    launch.finish()
}

#[cfg(target_os = "linux")]
fn the_first_process_of_a_container_ends() -> anyhow::Result<()> {
    let unshare = |program: &Command| {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let possible = unshare(&Command::new("true")).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "no right to make a process namespace: left out (the test before this one is its stand-in)"
        );
        return Ok(());
    }
    let launch = Launch::new()?;
    let run = |script: &str| {
        let options = ["-n", "1", "--grace", "0.2"];
        let mut command = unshare(&launch.command(&options, &["sh", "-c", script]));
        command.current_dir(&launch.directory);
        command.env(MARK, &launch.mark).spawn()
    };
    let output = output_in_time(run(LEAVES_A_CHILD)?)?;
    assert_eq!(sorted(&output.stdout), ["[0] done"], "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));

    // And it hears signals, although the system has no defaults for a first process.
    let mut child =
        run("trap 'exit 0' TERM; sleep 600 & echo ready; while :; do sleep 0.05; done")?;
    let mut lines = BufReader::new(child.stdout.take().context("no stdout")?);
    lines.read_line(&mut String::new())?;
    let parent = format!("PPid:\t{}\n", child.id());
    let is_first = |id: &String| {
        std::fs::read_to_string(format!("/proc/{id}/status"))
            .is_ok_and(|status| status.contains(&parent))
    };
    let first = launch.marked()?.into_iter().find(is_first);
    let first = first.and_then(|id| Pid::from_raw(id.parse().ok()?));
    kill_process(first.context("where is the launcher?")?, Signal::TERM)?;
    let output = output_in_time(child)?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    launch.finish()
}

/// A process that has left its rank's group is left alone; but the launcher has adopted it, so it owes it
/// a burial.
#[cfg(target_os = "linux")]
fn orphans_that_left_their_group_are_reaped() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // In a group of its own, it ends only when it has become an orphan and been told to.
    let script = "sh -c 'setsid sh -c \"echo \\$\\$ > daemon; while [ ! -e end ]; do sleep 0.02; done\" & \
            while [ ! -s daemon ]; do sleep 0.02; done'; \
        echo $(cat daemon); while [ ! -e over ]; do sleep 0.02; done";
    let mut running = launch.start(&["-n", "1"], script)?;
    let line = running.line()?;
    let daemon = line.trim().trim_start_matches("[0] ").to_owned();
    let status = || std::fs::read_to_string(format!("/proc/{daemon}/status"));
    let adopted = format!("PPid:\t{}\n", running.child.id());
    until(
        "the launcher adopts it",
        || Ok(status()?.contains(&adopted)),
    )?;
    std::fs::write(launch.directory.join("end"), "")?;
    until("it is buried", || Ok(status().is_err()))?;
    std::fs::write(launch.directory.join("over"), "")?;
    assert_eq!(running.end()?.0, Some(0));
    launch.finish()
}

#[cfg(target_os = "linux")]
fn what_cannot_be_killed_is_left_behind() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // A zombie in the rank's group, whose parent has left the group and does not look after it.
    let script = "(true & exec setsid sleep 600) & \
        while [ \"$(cut -d ' ' -f 5 /proc/$!/stat)\" != $! ]; do sleep 0.02; done; echo done";
    let options = ["-n", "1", "--grace", "0.2"];
    let child = launch.command(&options, &["sh", "-c", script]).spawn()?;
    let output = output_in_time(child)?;
    assert_eq!(sorted(&output.stdout), ["[0] done"]);
    let text = stderr(&output);
    assert!(
        text.contains("rank 0 has left processes behind that cannot be killed"),
        "{text}"
    );
    // The rank itself has ended well.
    assert_eq!(output.status.code(), Some(0));
    Ok(())
}

#[cfg(target_os = "linux")]
fn children_die_with_a_launcher_that_is_killed() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let mut running = launch.start(&["-n", "3"], "echo ready; exec sleep 600")?;
    running.await_lines("ready", 3)?;
    running.signal(Signal::KILL)?;
    running.end()?;
    let end = Instant::now() + PATIENCE;
    while !launch.marked()?.is_empty() && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    launch.finish()
}

fn a_failed_rank_is_started_again_at_most_k_times() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // Rank 1 fails always; rank 0 ends only when it is stopped.
    let script = "if [ $RANK = 0 ]; then exec sleep 600; fi; \
        echo life $FARREF_RESTART_COUNT of run $TORCHELASTIC_RESTART_COUNT; exit 5";
    let output = launch.sh(&["-n", "2", "--restarts", "2"], script)?;
    assert_eq!(
        sorted(&output.stdout),
        [0, 1, 2].map(|life| format!("[1] life {life} of run 0"))
    );
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    for expected in [
        "starting it again (1 of 2)",
        "starting it again (2 of 2)",
        "rank 1 failed first: exit code 5 after ",
        "the 3rd time; the others were stopped",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    launch.finish()
}

fn a_rank_that_recovers_finds_its_run_and_is_no_failure() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // Rank 1 is there until rank 0 has come back.
    let script = "echo $TORCHELASTIC_RUN_ID.$TORCHELASTIC_RESTART_COUNT:$MASTER_PORT; \
        if [ $RANK = 1 ]; then while [ ! -e back ]; do sleep 0.02; done; exit 0; fi; \
        [ $FARREF_RESTART_COUNT = 1 ] && : > back || kill -9 $$";
    let output = launch.sh(&["-n", "2", "--restarts", "1"], script)?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = sorted(&output.stdout);
    let runs: Vec<&str> = lines.iter().map(|line| &line[4..]).collect();
    assert_eq!(runs, [runs[0]; 3]);
    launch.finish()
}

/// Its group is over: it would wait in vain for somebody to let it in.
fn a_rank_that_fails_when_all_others_have_ended_well_is_not_started_again() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    // Rank 0 is gone for rank 1 when the launcher has learnt of its end.
    let script = "if [ $RANK = 0 ]; then echo $$ > pid; exit 0; fi; \
        while [ ! -s pid ] || kill -0 $(cat pid) 2> /dev/null; do sleep 0.02; done; \
        exit 5";
    let output = launch.sh(&["-n", "2", "--restarts", "3"], script)?;
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(!text.contains("starting it again"), "{text}");
    assert!(text.contains("all others had ended well"), "{text}");
    launch.finish()
}

fn all_are_started_again_when_asked_for() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "echo round $TORCHELASTIC_RESTART_COUNT; \
        [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; \
        : > there$RANK; if [ $RANK = 1 ]; then \
            while [ ! -e there0 ]; do sleep 0.02; done; exit 4; fi; exec sleep 600";
    let options = ["-n", "2", "--restarts", "1", "--restart", "all"];
    let output = launch.sh(&options, script)?;
    assert_eq!(
        sorted(&output.stdout),
        ["[0] round 0", "[0] round 1", "[1] round 0", "[1] round 1"]
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("starting all again (1 of 1)"));
    launch.finish()
}

fn closed_output_is_closed_for_the_ranks_too() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let mut running = launch.start(&["-n", "2"], "while :; do echo line; done")?;
    running.await_lines("line", 10)?;
    let Running { mut child, lines } = running;
    drop(lines);
    // As it would be without a launcher: SIGPIPE.
    assert_eq!(child.wait()?.code(), Some(128 + 13));
    launch.finish()
}

fn a_run_ends_when_told_to_although_nobody_reads_its_output() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "yes 'a line that nobody reads'";
    let options = ["-n", "2", "--grace", "0.2"];
    let mut child = launch.command(&options, &["sh", "-c", script]).spawn()?;
    let unread = child.stdout.take().context("no stdout")?;
    // The launcher stands at a pipe that is full, and so do its ranks.
    let mut before = 0;
    until("the pipe is full", || {
        thread::sleep(Duration::from_millis(200));
        let now = rustix::io::ioctl_fionread(&unread)?;
        Ok(now > 32 << 10 && std::mem::replace(&mut before, now) == now)
    })?;
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process id")?;
    kill_process(pid, Signal::TERM)?;
    let output = output_in_time(child)?;
    assert_eq!(output.status.code(), Some(128 + 15), "{}", stderr(&output));
    drop(unread);
    launch.finish()
}

/// With a Python that only says how it was called; `python/tests/test_torch_launch.py` has a real one.
fn programs_of_torch_are_started_on_farref() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let python = launch.directory.join("python3");
    std::fs::write(&python, "#!/bin/sh\necho $RANK of $WORLD_SIZE: \"$@\"")?;
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755))?;
    let program = ["./python3", "-u", "train.py", "--torch"];
    let output = launch.command(&["-n", "2", "--torch"], &program).output()?;
    assert_eq!(
        sorted(&output.stdout),
        [0, 1].map(|rank| format!("[{rank}] {rank} of 2: -u -m farref.torch train.py --torch"))
    );
    assert_eq!(output.status.code(), Some(0));
    launch.finish()
}

fn a_missing_program_is_one_clear_line() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    std::fs::write(launch.directory.join("plain"), "echo")?;
    std::fs::create_dir(launch.directory.join("folder"))?;
    for (program, expected) in [
        (
            "no-such-program",
            "cannot start `no-such-program`: no such program; is it on PATH?",
        ),
        ("./missing", "cannot start `./missing`: no such file"),
        ("./folder", "cannot start `./folder`: it is a directory"),
        ("./plain", "cannot start `./plain`: it is not executable"),
        ("plain", "for the file in this directory say `./plain`"),
    ] {
        let output = launch.command(&["-n", "3"], &[program]).output()?;
        let text = stderr(&output);
        assert!(
            text.starts_with("farref: ") && text.contains(expected) && text.lines().count() == 1,
            "{text}"
        );
        assert_eq!(output.status.code(), Some(1));
    }

    let script = launch.directory.join("script");
    std::fs::write(&script, "#!/no/such/interpreter")?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let output = launch.command(&["-n", "1"], &["./script"]).output()?;
    let text = stderr(&output);
    let expected = "cannot start `./script`: what its first line names to run it is not there";
    assert!(text.contains(expected), "{text}");
    assert_eq!(output.status.code(), Some(126));
    launch.finish()
}

fn what_does_not_fit_together_is_one_clear_line() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let taken = listener.local_addr()?.to_string();
    let in_use = format!("port {} is in use", listener.local_addr()?.port());
    for (options, expected) in [
        ("", "how many ranks? Say -n N"),
        ("-n 0", "-n 0 starts nothing"),
        ("-n 5000", "at most 4096 ranks on one node"),
        ("-n 3 --names a,b", "2 names for 3 ranks"),
        ("--names a,a", "the name \"a\" is there twice"),
        ("--names a/b", "\"a/b\" cannot be a worker's name"),
        ("--names w{rank}", "say with -n N how many ranks"),
        ("-n 1 --nnodes 2 --node-rank 0", "needs --rendezvous"),
        ("-n 1 --nnodes 2", "needs --node-rank"),
        ("-n 1 --node-rank 1", "--node-rank 1 is out of range"),
        ("-n 1 --rendezvous nowhere", "is not HOST:PORT"),
        ("-n 1 --torch", "`sh` is not Python"),
        (&format!("-n 1 --rendezvous {taken}"), &in_use),
    ] {
        let options: Vec<&str> = options.split_whitespace().collect();
        let output = launch.sh(&options, "exit 0")?;
        let text = stderr(&output);
        assert!(
            text.contains(expected) && text.lines().count() == 1,
            "{options:?}: {text}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
    let output = launch.sh(&["--no-such-option"], "exit 0")?;
    assert_eq!(output.status.code(), Some(2));
    launch.finish()
}

/// Runs a script on two nodes of two ranks each, both on this host; returns node 0's output first.
fn on_two_nodes(launch: &Launch, place: &str, script: &str) -> anyhow::Result<(Output, Output)> {
    let start = |node| {
        let options = ["-n", "2", "--nnodes", "2", "--rendezvous", place];
        let options = [&options[..], &["--node-rank", node]].concat();
        launch.command(&options, &["sh", "-c", script]).spawn()
    };
    // The one that hosts the store need not be the first.
    let second = start("1")?;
    let first = start("0")?;
    Ok((first.wait_with_output()?, second.wait_with_output()?))
}

fn two_launchers_make_one_group() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let place = format!("127.0.0.1:{}", free_port()?);
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK; \
        echo $MASTER_ADDR:$MASTER_PORT-$TORCHELASTIC_RUN_ID >&2";
    let (first, second) = on_two_nodes(&launch, &place, script)?;
    assert_eq!(sorted(&first.stdout), ["[0] 0 4 0 0", "[1] 1 4 1 0"]);
    assert_eq!(sorted(&second.stdout), ["[2] 2 4 0 1", "[3] 3 4 1 1"]);
    assert!(first.status.success() && second.status.success());
    // All ranks find one store and one run.
    let found = |output: &Output| sorted(&output.stderr).concat();
    let runs = found(&first) + &found(&second);
    let run = runs[4..runs.len() / 4].to_owned();
    assert!(run.starts_with(&place), "{runs}");
    assert_eq!(runs.matches(&run).count(), 4, "{runs}");
    launch.finish()
}

fn a_failure_on_one_node_ends_the_run_on_all() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let place = format!("127.0.0.1:{}", free_port()?);
    let script = "[ $RANK = 3 ] && exit 6; exec sleep 600";
    let (first, second) = on_two_nodes(&launch, &place, script)?;
    for output in [first, second] {
        let text = stderr(&output);
        assert!(
            text.starts_with("farref launch: rank 3 on node 1 failed first: exit code 6 after ")
                && text.lines().count() == 1,
            "{text}"
        );
        assert_eq!(output.status.code(), Some(6));
    }
    launch.finish()
}

fn a_stop_of_one_node_is_a_stop_of_all_and_no_failure() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let place = format!("127.0.0.1:{}", free_port()?);
    let script = "for s in INT TERM; do trap \"echo got $s; : > end\" $s; done; echo ready; \
        while [ ! -e end ] || [ ! -e all ]; do sleep 0.02; done; exit 0";
    let start = |node| {
        let options = ["-n", "1", "--nnodes", "2", "--rendezvous", &place];
        launch.start(&[&options[..], &["--node-rank", node]].concat(), script)
    };
    let mut nodes = [start("0")?, start("1")?];
    for node in &mut nodes {
        node.await_lines("ready", 1)?;
    }
    nodes[0].signal(Signal::INT)?;
    // As on one node: the signal that came, and no other.
    for node in &mut nodes {
        assert!(node.line()?.ends_with("got INT\n"));
    }
    std::fs::write(launch.directory.join("all"), "")?;
    let [first, second] = nodes.map(Running::end);
    for (ended, expected) in [
        (first?, "farref launch: stopped by SIGINT\n"),
        (second?, "farref launch: stopped by SIGINT on node 0\n"),
    ] {
        assert_eq!(ended, (Some(0), String::new(), expected.to_owned()));
    }
    launch.finish()
}

/// Stands between a node and the store, and can fall over.
struct Relay {
    port: u16,
    listener: Option<thread::JoinHandle<()>>,
    state: Arc<Mutex<RelayState>>,
}

#[derive(Default)]
struct RelayState {
    is_down: bool,
    open: Vec<TcpStream>,
}

impl Relay {
    fn start(port: u16, store: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let state = Arc::<Mutex<RelayState>>::default();
        let listening = Arc::clone(&state);
        let listener = thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let mut state = listening.lock().expect("no test thread panics with it");
                if state.is_down {
                    return;
                }
                // Nobody there yet: whoever came tries again.
                let Ok(to) = TcpStream::connect(("127.0.0.1", store)) else {
                    continue;
                };
                for (mut from, mut to) in [(&from, &to), (&to, &from)]
                    .into_iter()
                    .filter_map(|(from, to)| Some((from.try_clone().ok()?, to.try_clone().ok()?)))
                {
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                state.open.extend([from, to]);
            }
        });
        let listener = Some(listener);
        Ok(Self {
            port,
            listener,
            state,
        })
    }

    /// Cuts all connections and takes no more.
    fn fall_over(&mut self) -> anyhow::Result<()> {
        {
            let mut state = self.state.lock().expect("no test thread panics with it");
            state.is_down = true;
            for stream in state.open.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        // It looks whether it is down when somebody comes.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(listener) = self.listener.take() {
            listener.join().ok().context("the relay panicked")?;
        }
        Ok(())
    }
}

/// Reads until a line contains `text`.
fn await_line(lines: &mut BufReader<ChildStderr>, text: &str) -> anyhow::Result<()> {
    let mut all = String::new();
    loop {
        let before = all.len();
        ensure!(lines.read_line(&mut all)? > 0, "no {text:?} in {all}");
        if all[before..].contains(text) {
            return Ok(());
        }
    }
}

fn a_node_whose_ranks_are_well_goes_on_without_the_store() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let store = free_port()?;
    let mut relay = Relay::start(0, store)?;
    let script = "echo ready; while [ ! -e over ]; do sleep 0.02; done; exit 0";
    let start = |node, port: u16| {
        let place = format!("127.0.0.1:{port}");
        let options = ["-n", "1", "--nnodes", "2", "--rendezvous", &place];
        launch.start(&[&options[..], &["--node-rank", node]].concat(), script)
    };
    let mut first = start("0", store)?;
    let mut second = start("1", relay.port)?;
    first.await_lines("ready", 1)?;
    second.await_lines("ready", 1)?;
    let errors = second.child.stderr.take().context("no stderr")?;
    let mut errors = BufReader::new(errors);

    relay.fall_over()?;
    await_line(&mut errors, "node 0 cannot be reached")?;
    let port = relay.port;
    let mut again = None;
    until("the port is free", || {
        again = Relay::start(port, store).ok();
        Ok(again.is_some())
    })?;
    await_line(&mut errors, "node 0 is there again")?;

    // And node 0 still learns that all is well.
    std::fs::write(launch.directory.join("over"), "")?;
    let (second, first) = (second.end()?, first.end()?);
    assert_eq!(second, (Some(0), String::new(), String::new()));
    assert_eq!(first, (Some(0), String::new(), String::new()));
    launch.finish()
}

#[farref::remote]
async fn life() -> String {
    std::env::var("FARREF_RESTART_COUNT").unwrap_or_default()
}

#[farref::remote]
async fn crash() {
    std::process::exit(3);
}

/// What a rank does in the test below, which starts this very program.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn be_rank() -> anyhow::Result<()> {
    let me = Worker::from_env().join().await?;
    if std::env::var(RANK_PROGRAM).is_ok_and(|role| role == "watched") {
        println!("all are here");
        while !std::path::Path::new("over").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    if me.name() == "trainer" {
        let store_host = me.peer("ps")?;
        ensure!(life::on(&store_host).await? == "0");
        ensure!(crash::on(&store_host).await.is_err());
        let end = Instant::now() + PATIENCE;
        loop {
            let ps = me.wait_for_peer("ps", PATIENCE).await?;
            match life::on(&ps).await {
                Ok(life) => break ensure!(life == "1"),
                Err(error) => ensure!(Instant::now() < end, "it does not come back: {error}"),
            }
        }
        println!("it is back");
    }
    Ok(me.shutdown().await?)
}

fn rank_0_of_farref_crashes_and_comes_back_to_its_group() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let myself = std::env::current_exe()?;
    let myself = myself.to_str().context("a path that is no text")?;
    let options = ["--names", "ps,trainer", "--restarts", "1"];
    let output = launch
        .command(&options, &[myself])
        .env(RANK_PROGRAM, "1")
        .output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("[trainer] it is back\n"), "{stdout}");
    assert!(
        stderr.contains("ps (rank 0) failed: exit code 3"),
        "{stderr}"
    );
    launch.finish()
}
