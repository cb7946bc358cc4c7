//! What the other process is given (CU-5).

use std::io::Read as _;

use anyhow::{Context as _, Result, ensure};
use farref_cuda::testing::Machine;
use farref_cuda::{CudaError, ImportedPool, PoolOptions, SharedPool};
use farref_testkit::eventually_blocking;

use crate::peer::{Fields, said, start};

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

type Test = (&'static str, fn() -> Result<()>);

pub(crate) const TESTS: &[Test] = &[
    (
        "another_process_of_the_same_user_is_given_the_descriptor",
        another_process_of_the_same_user_is_given_the_descriptor,
    ),
    (
        "another_user_is_given_nothing_even_with_the_secret",
        another_user_is_given_nothing_even_with_the_secret,
    ),
    (
        "another_user_who_answers_for_a_pool_is_told_nothing",
        another_user_who_answers_for_a_pool_is_told_nothing,
    ),
];

/// Runs a test, after which there are as many descriptors and threads as before.
pub(crate) fn leaves_nothing_behind(test: fn() -> Result<()>) -> Result<()> {
    let count = || -> Result<_> {
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
        Ok((descriptors, std::fs::read_dir("/proc/self/task")?.count()))
    };
    let before = count()?;
    test()?;
    let as_before = || Ok(count()? == before);
    eventually_blocking("as many descriptors and threads as before", as_before)
        .with_context(|| format!("{before:?} became {:?}", count().ok()))
}

/// Runs a test with a pool's ticket.
fn with_ticket(test: impl FnOnce(&Machine, Fields) -> Result<()>) -> Result<()> {
    let machine = Machine::new(1);
    let here = machine.process();
    let pool = SharedPool::create(here.cuda(), 0, PoolOptions::default())?;
    test(&machine, Fields::of(&pool.ticket())?)?;
    drop(pool);
    machine.finish();
    Ok(())
}

/// Only root can be somebody else.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("left out: only root can start a process of another user");
    }
    root
}

fn another_process_of_the_same_user_is_given_the_descriptor() -> Result<()> {
    with_ticket(|_, fields| {
        let said = said(start("asks", &fields, None)?)?;
        ensure!(said == "3 bytes, 2 descriptors, 8 bytes in it", "{said}");
        Ok(())
    })
}

fn another_user_is_given_nothing_even_with_the_secret() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    with_ticket(|machine, fields| {
        let said = said(start("asks", &fields, Some(NOBODY))?)?;
        ensure!(said == "0 bytes, 0 descriptors", "{said}");
        // Others are served as before.
        let there = machine.process();
        ImportedPool::open(there.cuda(), &fields.ticket()?)?;
        Ok(())
    })
}

fn another_user_who_answers_for_a_pool_is_told_nothing() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    with_ticket(|machine, mut fields| {
        fields.socket = format!("farref-cuda-test-{}", std::process::id());
        let mut child = start("answers", &fields, Some(NOBODY))?;
        let output = child.stdout.as_mut().context("it was piped")?;
        output.read_exact(&mut [0])?;
        let there = machine.process();
        let refused = ImportedPool::open(there.cuda(), &fields.ticket()?);
        ensure!(matches!(refused, Err(CudaError::OtherUser)), "{refused:?}");
        let said = said(child)?;
        ensure!(said == "0 bytes came", "{said}");
        Ok(())
    })
}
