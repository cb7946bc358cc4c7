//! Which variable wins, and what a wrong one gets to hear.

use super::Settings;
use crate::error::RendezvousError;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn read(variables: Pairs<'_>) -> Result<Settings, RendezvousError> {
    Settings::read(|wanted| {
        let found = variables.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| (*value).to_owned())
    })
}

const TORCHRUN: Pairs<'_> = &[
    ("RANK", "2"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "0"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("TORCHELASTIC_RUN_ID", "run"),
    ("TORCHELASTIC_RESTART_COUNT", "1"),
];
const SLURM: Pairs<'_> = &[
    ("SLURM_PROCID", "1"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_JOB_NODELIST", "gpu[07-12,30]"),
    ("SLURM_JOB_ID", "1234567"),
];
const REQUEUED: Pairs<'_> = &[("SLURM_STEP_ID", "0"), ("SLURM_RESTART_COUNT", "2")];
const OPEN_MPI: Pairs<'_> = &[
    ("OMPI_COMM_WORLD_RANK", "6"),
    ("OMPI_COMM_WORLD_SIZE", "7"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
    ("PMIX_NAMESPACE", "1886846977"),
    ("PMIX_RANK", "6"),
];
const JOB: Pairs<'_> = &[("JOB_COMPLETION_INDEX", "5")];
const SET: Pairs<'_> = &[("HOSTNAME", "trainer-3")];

#[test]
fn the_nearest_source_wins() {
    // The variables; then name, rank, world size, rendezvous, hosted elsewhere, run.
    type Expected<'a> = (&'a str, u32, Option<u32>, &'a str, bool, &'a str);
    let own_size = &[("FARREF_WORLD_SIZE", "9")][..];
    let own_rank = &[("FARREF_RANK", "3"), ("FARREF_NAME", "ps")][..];
    let own_place = &[("FARREF_RENDEZVOUS", "tcp://h:1")][..];
    let by_environment = &[("FARREF_RENDEZVOUS", "env://")][..];
    let master = &[("MASTER_ADDR", "m"), ("MASTER_PORT", "2")][..];
    let table: &[(&[Pairs<'_>], Expected<'_>)] = &[
        (
            &[TORCHRUN],
            ("worker2", 2, Some(4), "tcp://node1:29500", true, "run.1"),
        ),
        (
            &[TORCHRUN, SLURM],
            ("worker2", 2, Some(4), "tcp://node1:29500", true, "run.1"),
        ),
        (
            &[TORCHRUN, own_rank],
            ("ps", 3, Some(4), "tcp://node1:29500", true, "run.1"),
        ),
        (
            &[TORCHRUN, own_size],
            ("worker2", 2, Some(9), "tcp://node1:29500", true, "run.1"),
        ),
        (
            &[TORCHRUN, own_place],
            ("worker2", 2, Some(4), "tcp://h:1", false, "run.1"),
        ),
        (
            &[TORCHRUN, by_environment],
            ("worker2", 2, Some(4), "tcp://node1:29500", true, "run.1"),
        ),
        (
            &[SLURM],
            ("worker1", 1, Some(8), "tcp://gpu07:24567", false, "1234567"),
        ),
        (
            &[SLURM, master],
            ("worker1", 1, Some(8), "tcp://m:2", false, "1234567"),
        ),
        (
            &[SLURM, JOB, SET],
            ("worker1", 1, Some(8), "tcp://gpu07:24567", false, "1234567"),
        ),
        (
            &[SLURM, own_rank],
            ("ps", 3, Some(8), "tcp://gpu07:24567", false, "1234567"),
        ),
        (
            &[SLURM, REQUEUED, master],
            ("worker1", 1, Some(8), "tcp://m:2", false, "1234567.0.2"),
        ),
        (
            &[OPEN_MPI, master],
            ("worker6", 6, Some(7), "tcp://m:2", false, "1886846977"),
        ),
        // A batch script of Slurm runs `mpirun`, and this runs torchrun on each host.
        (
            &[OPEN_MPI, SLURM],
            ("worker6", 6, Some(7), "", false, "1886846977"),
        ),
        (
            &[TORCHRUN, OPEN_MPI, SLURM],
            ("worker2", 2, Some(4), "tcp://node1:29500", true, "run.1"),
        ),
        (&[JOB], ("worker5", 5, None, "", false, "")),
        (
            &[JOB, SET, own_size],
            ("worker5", 5, Some(9), "", false, ""),
        ),
        (
            &[SET, own_size, own_place],
            ("worker3", 3, Some(9), "tcp://h:1", false, ""),
        ),
        (
            &[SET, own_size, own_rank],
            ("ps", 3, Some(9), "", false, ""),
        ),
        (&[own_rank], ("ps", 3, None, "", false, "")),
    ];
    for (variables, (name, rank, world_size, place, hosted_elsewhere, run)) in table {
        let settings = read(&variables.concat()).unwrap();
        assert_eq!(settings.name.as_deref(), Some(*name), "{variables:?}");
        assert_eq!(settings.rank, Some(*rank), "{variables:?}");
        assert_eq!(settings.world_size, *world_size, "{variables:?}");
        let found = settings.rendezvous.map(|place| place.to_string());
        assert_eq!(found.unwrap_or_default(), *place, "{variables:?}");
        assert_eq!(
            settings.hosted_elsewhere, *hosted_elsewhere,
            "{variables:?}"
        );
        assert_eq!(settings.run_id.unwrap_or_default(), *run, "{variables:?}");
    }
}

#[test]
fn an_environment_that_says_nothing_sets_nothing() {
    assert_eq!(read(&[]).unwrap(), Settings::default());
    let hints = [
        ("HOSTNAME", "trainer-3"),
        ("RANK", ""),
        ("FARREF_NAME", "  "),
        ("SLURM_NTASKS", "4"),
        ("MASTER_PORT", "1"),
    ];
    assert_eq!(read(&hints).unwrap(), Settings::default());
    let beyond = [("HOSTNAME", "gpu-17"), ("FARREF_WORLD_SIZE", "4")];
    assert_eq!(read(&beyond).unwrap().rank, None);
}

#[test]
fn a_malformed_variable_is_named_with_its_value_and_what_was_expected() {
    let table: &[(Pairs<'_>, &str, &str)] = &[
        (&[("FARREF_RANK", "two")], "FARREF_RANK=\"two\"", "a number"),
        (&[("FARREF_RANK", "-1")], "FARREF_RANK=\"-1\"", "a number"),
        (
            &[("FARREF_WORLD_SIZE", "0")],
            "FARREF_WORLD_SIZE=\"0\"",
            "from 1",
        ),
        (
            &[("FARREF_RENDEZVOUS", "host:1")],
            "FARREF_RENDEZVOUS=\"host:1\"",
            "tcp://",
        ),
        (&[("FARREF_RENDEZVOUS", "env://")], "MASTER_ADDR", "not set"),
        (
            &[("FARREF_ADVERTISE", "eth0")],
            "FARREF_ADVERTISE=\"eth0\"",
            "IP address",
        ),
        (
            &[("FARREF_ADVERTISE", "0.0.0.0")],
            "FARREF_ADVERTISE",
            "IP address",
        ),
        (&[("FARREF_NAME", "a b")], "\"a b\"", "letters"),
        (&[("RANK", "x")], "RANK=\"x\"", "a number"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "many")],
            "WORLD_SIZE=\"many\"",
            "a number",
        ),
        (
            &[("RANK", "4"), ("WORLD_SIZE", "4")],
            "rank 4",
            "world size 4",
        ),
        (&[("MASTER_ADDR", "h")], "MASTER_PORT", "not set"),
        (
            &[("MASTER_ADDR", "h"), ("MASTER_PORT", "0")],
            "MASTER_PORT=\"0\"",
            "a port",
        ),
        (
            &[("MASTER_ADDR", "tcp://h"), ("MASTER_PORT", "1")],
            "MASTER_ADDR=",
            "name or address",
        ),
        (
            &[("TORCHELASTIC_USE_AGENT_STORE", "si")],
            "USE_AGENT_STORE=\"si\"",
            "True or False",
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "c")],
            "OMPI_COMM_WORLD_RANK=\"c\"",
            "a number",
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "d")],
            "OMPI_COMM_WORLD_SIZE=\"d\"",
            "a number",
        ),
        (&[("SLURM_PROCID", "a")], "SLURM_PROCID=\"a\"", "a number"),
        (
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "b")],
            "SLURM_NTASKS=\"b\"",
            "a number",
        ),
        (
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_NODELIST", "n[")],
            "SLURM_STEP_NODELIST=\"n[\"",
            "node list",
        ),
        (
            &[
                ("SLURM_PROCID", "0"),
                ("SLURM_JOB_NODELIST", "n"),
                ("SLURM_JOB_ID", "j"),
            ],
            "SLURM_JOB_ID=\"j\"",
            "number",
        ),
        (
            &[("JOB_COMPLETION_INDEX", "1.5")],
            "JOB_COMPLETION_INDEX=\"1.5\"",
            "a number",
        ),
    ];
    for (variables, named, expected) in table {
        let error = read(variables).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains(expected), "{error}");
    }
}

#[test]
fn a_token_is_read_and_never_shown() {
    let settings = read(&[("FARREF_TOKEN", "swordfish"), ("FARREF_ADVERTISE", "::1")]).unwrap();
    assert_eq!(settings.token.as_deref(), Some("swordfish"));
    assert_eq!(settings.advertise, Some("::1".parse().unwrap()));
    assert!(!format!("{settings:?}").contains("swordfish"));
}

/// Whoever writes a password where it must not be does not find it in its log, too.
#[test]
fn a_password_in_the_rendezvous_is_refused_and_not_shown() {
    let error = read(&[("FARREF_RENDEZVOUS", "etcd://bob:secret@h:1/x")]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("FARREF_RENDEZVOUS"), "{text}");
    assert!(text.contains("password-file"), "{text}");
    assert!(!format!("{text} {error:?}").contains("secret"), "{error:?}");
}
