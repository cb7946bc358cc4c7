//! `farref launch` with real processes: small shell programs as ranks.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{ChildStderr, Command, Output};

use anyhow::{Context as _, ensure};
use farref::Worker;
use farref_testkit::{
    Proxy, Requirement, TEST_TIMEOUT, eventually, eventually_async, eventually_blocking, free_port,
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::launching::{Launch, Running, free_place, myself, sorted, stderr};

/// Tells this program that it is started as a rank of farref.
const RANK_PROGRAM: &str = "FARREF_LAUNCH_TEST_RANK";
/// Tells this program to run its arguments, and to leave zombies to others.
#[cfg(target_os = "linux")]
const NEGLIGENT_PARENT: &str = "FARREF_LAUNCH_TEST_NEGLIGENT_PARENT";

/// Does what the environment tells, if it does.
pub(crate) fn work_if_told() -> Option<anyhow::Result<()>> {
    if std::env::var_os(RANK_PROGRAM).is_some() {
        return Some(be_rank());
    }
    #[cfg(target_os = "linux")]
    if std::env::var_os(NEGLIGENT_PARENT).is_some() {
        return Some(be_negligent_parent());
    }
    None
}

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials![
        crate::blocking,
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
    ]
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
    let place = free_place()?;
    let options = ["--names", "first,second", "--rendezvous", &place];
    let mut command = launch.command(&options, &[&myself()?]);
    let mut running = Running::start(command.env(RANK_PROGRAM, "watched"))?;
    running.await_lines("all are here", 2)?;
    let inspect = |runtime_directory: &std::path::Path| {
        Command::new(env!("CARGO_BIN_EXE_farref"))
            .args(["inspect", &place])
            .env_remove("FARREF_TOKEN")
            .env("XDG_RUNTIME_DIR", runtime_directory)
            .output()
    };
    let kept = launch.path("farref");
    let files: Vec<_> = std::fs::read_dir(&kept)?.collect::<io::Result<_>>()?;
    let [file] = &files[..] else {
        anyhow::bail!("{files:?}");
    };
    let mode = |path: &std::path::Path| -> io::Result<u32> {
        Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
    };
    assert_eq!((mode(&kept)?, mode(&file.path())?), (0o700, 0o600));
    let seen = inspect(launch.scratch.path())?;
    let text = String::from_utf8_lossy(&seen.stdout);
    assert!(seen.status.success(), "{text}{}", stderr(&seen));
    assert!(text.contains("first") && text.contains("second"), "{text}");
    // Somebody who cannot read the file.
    let elsewhere = launch.path("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let seen = inspect(&elsewhere)?;
    let text = String::from_utf8_lossy(&seen.stdout);
    assert!(!seen.status.success(), "{text}");
    assert!(text.contains("set FARREF_TOKEN"), "{text}{}", stderr(&seen));

    launch.touch("over")?;
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
    assert_eq!(running.line()? + &running.line()?, "[0] 10%\n[0] 20%\n");
    launch.touch("over")?;
    let (code, stdout, _) = running.end()?;
    assert_eq!((code, stdout.as_str()), (Some(0), "[0] 30%\n[0] end\n"));
    launch.finish()
}

fn a_line_that_takes_its_time_is_shown_as_far_as_it_is() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let script = "printf 'Loading ... '; while [ ! -e over ]; do sleep 0.02; done; echo done";
    let mut running = launch.start(&["-n", "1"], script)?;
    let mut begun = [0; 16];
    running.lines.read_exact(&mut begun)?;
    assert_eq!(&begun, b"[0] Loading ... ");
    launch.touch("over")?;
    // Nobody else has printed since: the line goes on where it was.
    assert_eq!(running.end()?.1, "done\n");

    // Another rank's line breaks it off, and the rest has a line of its own.
    let script = "if [ $RANK = 1 ]; then while [ ! -e begun ]; do sleep 0.02; done; echo other; exit; fi; \
        printf 'Loading ... '; while [ ! -e end ]; do sleep 0.02; done; echo done";
    let launch = Launch::new()?;
    let mut running = launch.start(&["-n", "2"], script)?;
    let mut begun = [0; 16];
    running.lines.read_exact(&mut begun)?;
    launch.touch("begun")?;
    assert_eq!(running.line()? + &running.line()?, "\n[1] other\n");
    launch.touch("end")?;
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
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg(launcher.get_program())
        .args(launcher.get_args())
        .env(NEGLIGENT_PARENT, "1");
    launch.set_up(&mut command);
    let output = command.output()?;
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
            .args(program.get_args());
        command
    };
    // Without them, the test before this one is its stand-in.
    let namespaces = Requirement {
        needed: "the right to make process namespaces (root)",
        variable: "FARREF_REQUIRE_NETNS",
    };
    let possible = unshare(&Command::new("true")).output();
    let is_possible = possible.is_ok_and(|output| output.status.success());
    if !namespaces.is_met((!is_possible).then_some("`unshare --pid` fails"))? {
        return Ok(());
    }
    let launch = Launch::new()?;
    let command = |script: &str| {
        let options = ["-n", "1", "--grace", "0.2"];
        let mut command = unshare(&launch.command(&options, &["sh", "-c", script]));
        launch.set_up(&mut command);
        command
    };
    let output = command(LEAVES_A_CHILD).output()?;
    assert_eq!(sorted(&output.stdout), ["[0] done"], "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));

    // And it hears signals, although the system has no defaults for a first process.
    let script = "trap 'exit 0' TERM; sleep 600 & echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(&mut command(script))?;
    running.await_lines("ready", 1)?;
    let parent = format!("PPid:\t{}\n", running.child.id());
    let is_first = |id: &String| {
        std::fs::read_to_string(format!("/proc/{id}/status"))
            .is_ok_and(|status| status.contains(&parent))
    };
    let first = launch.marked()?.into_iter().find(is_first);
    let first = first.and_then(|id| Pid::from_raw(id.parse().ok()?));
    kill_process(first.context("where is the launcher?")?, Signal::TERM)?;
    let (code, _, stderr) = running.end()?;
    assert_eq!(code, Some(0), "{stderr}");
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
    eventually_blocking(
        "the launcher adopts it",
        || Ok(status()?.contains(&adopted)),
    )?;
    launch.touch("end")?;
    eventually_blocking("it is buried", || Ok(status().is_err()))?;
    launch.touch("over")?;
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
    let output = launch.sh(&options, script)?;
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
    eventually_blocking("the ranks are gone", || Ok(launch.marked()?.is_empty()))?;
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
    let Running { child, lines } = launch.start(&options, script)?;
    // The launcher waits at a full pipe, and so do its ranks. A pipe can be full with fewer bytes
    // than its size, so what shows it is that there are no more bytes in many looks.
    let (mut before, mut unchanged) = (0, 0);
    eventually_blocking("the pipe is full", || {
        let now = rustix::io::ioctl_fionread(lines.get_ref())?;
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
        Ok(now > 32 << 10 && unchanged == 40)
    })?;
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process id")?;
    kill_process(pid, Signal::TERM)?;
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(128 + 15), "{}", stderr(&output));
    drop(lines);
    launch.finish()
}

/// With a Python that only says how it was called; `python/tests/test_torch_launch.py` has a real one.
fn programs_of_torch_are_started_on_farref() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let python = launch.path("python3");
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
    std::fs::write(launch.path("plain"), "echo")?;
    std::fs::create_dir(launch.path("folder"))?;
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

    let script = launch.path("script");
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
    let place = free_place()?;
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
    let place = free_place()?;
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
    let place = free_place()?;
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
    launch.touch("all")?;
    let [first, second] = nodes.map(Running::end);
    for (ended, expected) in [
        (first?, "farref launch: stopped by SIGINT\n"),
        (second?, "farref launch: stopped by SIGINT on node 0\n"),
    ] {
        assert_eq!(ended, (Some(0), String::new(), expected.to_owned()));
    }
    launch.finish()
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
    // Between a node and the store.
    let proxy = Proxy::new()?;
    let relay = proxy.add(([127, 0, 0, 1], store).into())?;
    let script = "echo ready; while [ ! -e over ]; do sleep 0.02; done; exit 0";
    let start = |node, port: u16| {
        let place = format!("127.0.0.1:{port}");
        let options = ["-n", "1", "--nnodes", "2", "--rendezvous", &place];
        launch.start(&[&options[..], &["--node-rank", node]].concat(), script)
    };
    let mut first = start("0", store)?;
    let mut second = start("1", relay.port())?;
    first.await_lines("ready", 1)?;
    second.await_lines("ready", 1)?;
    let errors = second.child.stderr.take().context("no stderr")?;
    let mut errors = BufReader::new(errors);

    proxy.go_down();
    await_line(&mut errors, "node 0 cannot be reached")?;
    proxy.pass();
    await_line(&mut errors, "node 0 is there again")?;

    // And node 0 still learns that all is well.
    launch.touch("over")?;
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
        let over = std::path::Path::new("over");
        eventually("the test is over", || over.exists()).await?;
    }
    if me.name() == "trainer" {
        let store_host = me.peer("ps")?;
        ensure!(life::on(&store_host).await? == "0");
        ensure!(crash::on(&store_host).await.is_err());
        eventually_async("it comes back", async || {
            let ps = me.wait_for_peer("ps", TEST_TIMEOUT).await?;
            let Ok(life) = life::on(&ps).await else {
                return Ok(false);
            };
            ensure!(life == "1");
            Ok(true)
        })
        .await?;
        println!("it is back");
    }
    Ok(me.shutdown().await?)
}

fn rank_0_of_farref_crashes_and_comes_back_to_its_group() -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let options = ["--names", "ps,trainer", "--restarts", "1"];
    let output = launch
        .command(&options, &[&myself()?])
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
