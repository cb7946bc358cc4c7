//! Tensors on a GPU with `torch.distributed.rpc` and a device map, on the same GPU in the same run.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::figures::Theirs;
use crate::form::Direction;
use crate::samples::Times;

/// Measures them, the first time it is asked: they do not depend on what farref's workers talk through.
#[cfg(feature = "cuda")]
pub(super) async fn tensors(
    python: &std::path::Path,
    sizes: &[usize],
    plan: &crate::plan::Plan,
    recorder: &mut crate::report::Recorder<'_>,
) -> anyhow::Result<&'static [Theirs]> {
    static MEASURED: tokio::sync::OnceCell<Vec<Theirs>> = tokio::sync::OnceCell::const_new();
    const PROGRAM: &str = include_str!("torch_tensors.py");
    let measured = MEASURED.get_or_try_init(async || {
        let (warm_up, calls) = if plan.smoke { (1, 3) } else { (5, 50) };
        let numbers = [warm_up, calls].into_iter().chain(sizes.iter().copied());
        let numbers: Vec<_> = numbers.map(|number: usize| number.to_string()).collect();
        let printed = super::super::torch::output(python, PROGRAM, &numbers).await?;
        let theirs = read(&printed)?;
        ensure!(!theirs.is_empty(), "it measured nothing");
        for one in &theirs {
            recorder.add(one.measurement());
        }
        Ok(theirs)
    });
    Ok(measured.await?)
}

/// What the program prints: a line for each call, those of one kind one after the other.
fn read(printed: &str) -> anyhow::Result<Vec<Theirs>> {
    let mut kinds: Vec<(Direction, usize, Vec<Duration>)> = Vec::new();
    for line in printed.lines() {
        let wrong = || format!("it printed `{line}`");
        let words: Vec<_> = line.split(' ').collect();
        let [direction, bytes, nanoseconds] = words[..] else {
            anyhow::bail!(wrong());
        };
        let direction = match direction {
            "one_way" => Direction::OneWay,
            "echo" => Direction::Echo,
            _ => anyhow::bail!(wrong()),
        };
        let bytes = bytes.parse().with_context(wrong)?;
        let time = Duration::from_nanos(nanoseconds.parse().with_context(wrong)?);
        match kinds.last_mut() {
            Some((last, size, times)) if *last == direction && *size == bytes => times.push(time),
            _ => kinds.push((direction, bytes, vec![time])),
        }
    }
    ensure!(!kinds.is_empty(), "it measured nothing");
    let theirs = kinds.into_iter().map(|(direction, bytes, times)| Theirs {
        direction,
        bytes,
        times: Times::of(times),
    });
    Ok(theirs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_size_and_direction_are_one_figure() -> anyhow::Result<()> {
        let theirs =
            read("one_way 1024 3000\none_way 1024 1000\none_way 1024 2000\necho 1024 9000\n")?;
        let [taken, back] = &theirs[..] else {
            anyhow::bail!("{theirs:?}");
        };
        assert_eq!((taken.direction, taken.bytes), (Direction::OneWay, 1024));
        assert_eq!((taken.times.p50, taken.times.samples), (2.0, 3));
        assert_eq!((back.direction, back.times.p50), (Direction::Echo, 9.0));
        let recorded = serde_json::to_value(back.measurement())?;
        assert_eq!(recorded["name"], "torch_tensor");
        assert_eq!(recorded["direction"], "echo");
        Ok(())
    }

    #[test]
    fn what_is_no_figure_is_an_error_that_shows_it() {
        for line in [
            "hello",
            "one_way 1024",
            "sideways 1 2",
            "echo x 2",
            "echo 1 -2",
        ] {
            let said = read(&format!("echo 1 2\n{line}\n"));
            let said = said.map(drop).expect_err(line);
            assert!(said.to_string().contains(line), "{said}");
        }
        assert!(read("").is_err());
    }
}
