//! Device memory from one process to another on a real GPU: what it costs, and that what is wrong is refused.
//!
//! This process has the memory; another one, which is this program again, imports it, checks and changes it. Needs a CUDA driver
//! and no toolkit; where there is none it says so.
//!
//! ```sh
//! cargo run --release --example two_processes -p farref-cuda -- 4    # GiB to reserve
//! ```

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("only Linux has what this measures");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use anyhow::{Context as _, Result, bail, ensure};
    use farref_cuda::{
        AfterWork, Cuda, CudaError, DeviceMemory, ExportMessage, ImportedPool, PinnedOptions,
        PinnedPool, PoolOptions, SharedPool, StreamHandle, Ticket,
    };

    const ROLE: &str = "FARREF_CUDA_IMPORTER";
    const STREAM: StreamHandle = StreamHandle::DEFAULT;
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;
    const ROUNDS: usize = 20;

    pub(super) fn main() -> Result<()> {
        if std::env::var_os(ROLE).is_some() {
            return importer();
        }
        let gib = std::env::args().nth(1).map_or(Ok(4), |gib| gib.parse())?;
        let cuda = match Cuda::open() {
            Err(error @ CudaError::NoDriver(_)) => {
                println!("{error}");
                return Ok(());
            }
            opened => opened?,
        };
        exporter(&cuda, gib)
    }

    fn exporter(cuda: &Cuda, gib: u64) -> Result<()> {
        let (count, uuid, memory) = (cuda.device_count()?, cuda.uuid(0)?, cuda.memory(0)?);
        println!(
            "{count} devices, the first one is {uuid}, {} of {} MiB free",
            memory.free >> 20,
            memory.total >> 20
        );
        let before = cuda.allocate(0, MIB as u64, STREAM)?;
        let options = PoolOptions {
            reserve: gib << 30,
            limit: 16 << 30,
        };
        let begun = Instant::now();
        let pool = SharedPool::create(cuda, 0, options)?;
        println!(
            "pool with {gib} GiB in reserve: {:?}, anchored: {}",
            begun.elapsed(),
            pool.is_anchored()
        );
        let refused = pool.export(before.pointer(), before.bytes(), STREAM);
        println!("memory from before the pool: {}", said(refused));
        let pinned = PinnedPool::new(
            cuda,
            0,
            PinnedOptions {
                limit: 4 << 30,
                ..PinnedOptions::default()
            },
        )?;
        copies(cuda, &pinned)?;
        uploads(cuda)?;

        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut to = child.stdin.take().context("it was piped")?;
        let mut from = child.stdout.take().context("it was piped")?;
        say(&mut to, &pool.ticket())?;
        let opened: u64 = hear(&mut from)?;
        println!(
            "the other process has opened the pool: {} µs",
            opened / 1000
        );
        println!(
            "\n{:>10} {:>12} {:>12} {:>12} {:>12} {:>12}   (µs: first, then medians of {ROUNDS})",
            "bytes", "export 1st", "export", "import 1st", "import", "free"
        );
        for bytes in [KIB, MIB, 64 * MIB, GIB, 4 * GIB] {
            if let Err(error) = size(cuda, &pool, &pinned, bytes, &mut to, &mut from) {
                drop(to);
                let ended = child.wait()?;
                return Err(error.context(format!("the other process: {ended}")));
            }
        }
        println!("{} bytes are out", pool.exported_bytes());
        let large = cuda.allocate(0, 6 << 30, STREAM)?;
        let refused = pool.export(large.pointer(), large.bytes(), STREAM);
        println!("more than the driver can share: {}", said(refused));
        drop(large);

        let memory = cuda.allocate(0, MIB as u64, STREAM)?;
        println!(
            "an address inside: {}",
            said(pool.export(memory.pointer() + 512, 512, STREAM))
        );
        println!(
            "more than there is: {}",
            said(pool.export(memory.pointer(), 5 << 20, STREAM))
        );
        println!(
            "no device memory: {}",
            said(pool.export(0x1000, 512, STREAM))
        );
        // SAFETY: this is the default stream of each thread, which is always there.
        let other_stream = unsafe { StreamHandle::from_raw(2) };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            drop(pool.export(memory.pointer(), memory.bytes(), other_stream)?);
            times.push(begun.elapsed());
        }
        println!("export on another stream: {:?}", median(&mut times));
        after_work(cuda)?;
        drop(to);
        ensure!(child.wait()?.success(), "the importer failed");
        drop((memory, before));
        drop(pool);
        cuda.synchronize(0, STREAM)?;
        println!("ok");
        Ok(())
    }

    /// One size: exported again and again, each time of another allocation.
    fn size(
        cuda: &Cuda,
        pool: &std::sync::Arc<SharedPool>,
        pinned: &PinnedPool,
        bytes: usize,
        to: &mut impl Write,
        from: &mut impl Read,
    ) -> Result<()> {
        let rounds = if bytes > GIB { 3 } else { ROUNDS };
        let (mut exports, mut imports, mut frees) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            let memory = cuda.allocate(0, bytes as u64, STREAM)?;
            let pattern = pattern(round as u8, bytes.min(MIB));
            up(pinned, &pattern, &memory)?;
            let begun = Instant::now();
            let exported = pool.export(memory.pointer(), memory.bytes(), STREAM)?;
            exports.push(begun.elapsed());
            say(to, &(exported.message(), round as u8))?;
            let (import, free): (u64, u64) = hear(from)?;
            imports.push(Duration::from_nanos(import));
            frees.push(Duration::from_nanos(free));
            // SAFETY: it is all of it, and the importer has finished.
            let seen = unsafe { pinned.download(memory.pointer(), bytes.min(MIB), STREAM) }?;
            let want = self::pattern(!(round as u8), bytes.min(MIB));
            ensure!(
                seen.to_vec()? == want,
                "what the importer wrote is not here"
            );
        }
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        println!(
            "{bytes:>10} {:>12.1} {:>12.1} {:>12.1} {:>12.1} {:>12.1}",
            micros(exports[0]),
            micros(median(&mut exports[1..])),
            micros(imports[0]),
            micros(median(&mut imports[1..])),
            micros(median(&mut frees))
        );
        Ok(())
    }

    /// The other process.
    fn importer() -> Result<()> {
        let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
        let ticket: Ticket = hear(&mut from)?;
        let cuda = Cuda::open()?;
        cuda.memory(0)?;
        let begun = Instant::now();
        let pool = ImportedPool::open(&cuda, &ticket)?;
        say(&mut to, &(begun.elapsed().as_nanos() as u64))?;
        let pinned = PinnedPool::new(
            &cuda,
            pool.ordinal(),
            PinnedOptions {
                limit: 16 << 30,
                ..PinnedOptions::default()
            },
        )?;
        let (mut is_first, mut is_second) = (true, true);
        while let Ok((message, seed)) = hear::<(ExportMessage, u8)>(&mut from) {
            let begun = Instant::now();
            let memory = pool.import(&message, STREAM)?;
            let import = begun.elapsed();
            let bytes = (memory.bytes() as usize).min(MIB);
            // SAFETY: it is imported memory of that length, which the exporter leaves alone.
            let download = unsafe { pinned.download(memory.pointer(), bytes, STREAM) }?;
            let (want, mut same) = (pattern(seed, bytes), false);
            download.look(0..bytes, &mut |bytes| same = bytes == want)?;
            ensure!(same, "the exporter's bytes have not come");
            drop(download);
            if std::mem::take(&mut is_first) {
                let again = pool.import(&message, STREAM);
                eprintln!("the same memory a second time: {}", said(again));
                let copy = pool.copy(&message, STREAM)?;
                // SAFETY: it is memory of this process, of that length.
                let copy = unsafe { pinned.download(copy.pointer(), bytes, STREAM) }?;
                ensure!(copy.to_vec()? == want, "the copy has other bytes");
                eprintln!("the same memory, copied: ok");
            }
            // SAFETY: the same.
            unsafe { pinned.upload(&pattern(!seed, bytes), memory.pointer(), STREAM) }?;
            cuda.synchronize(pool.ordinal(), STREAM)?;
            let begun = Instant::now();
            drop(memory);
            cuda.synchronize(pool.ordinal(), STREAM)?;
            let free = begun.elapsed();
            if std::mem::take(&mut is_second) {
                let refused = pool.import(&longer(&message)?, STREAM);
                eprintln!("a message that says more than there is: {}", said(refused));
            }
            say(&mut to, &(import.as_nanos() as u64, free.as_nanos() as u64))?;
        }
        Ok(())
    }

    /// The same message with four times the length, as no correct peer sends it.
    fn longer(message: &ExportMessage) -> Result<ExportMessage> {
        type Fields = (u64, u64, ([u8; 32], [u8; 32]), (u32, u64));
        let mut fields: Fields = postcard::from_bytes(&postcard::to_allocvec(message)?)?;
        fields.1 *= 4;
        Ok(postcard::from_bytes(&postcard::to_allocvec(&fields)?)?)
    }

    /// The rates of copies, down and up, through page-locked windows.
    fn copies(cuda: &Cuda, pinned: &PinnedPool) -> Result<()> {
        println!(
            "\n{:>10} {:>12} {:>12} {:>14} {:>14}",
            "bytes", "up", "down", "up", "down"
        );
        for bytes in [KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB] {
            let memory = cuda.allocate(0, bytes as u64, STREAM)?;
            let source = pattern(7, bytes);
            let (mut ups, mut downs) = (Vec::new(), Vec::new());
            for _ in 0..6 {
                let begun = Instant::now();
                up(pinned, &source, &memory)?;
                cuda.synchronize(0, STREAM)?;
                ups.push(begun.elapsed());
                let begun = Instant::now();
                // SAFETY: it is all of it.
                let download = unsafe { pinned.download(memory.pointer(), bytes, STREAM) }?;
                download.wait_all()?;
                downs.push(begun.elapsed());
                ensure!(download.to_vec()? == source, "other bytes came back");
            }
            let (up, down) = (median(&mut ups[1..]), median(&mut downs[1..]));
            let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
            println!(
                "{bytes:>10} {up:>12.1?} {down:>12.1?} {:>9.1} GB/s {:>9.1} GB/s",
                rate(up),
                rate(down)
            );
        }
        Ok(())
    }

    /// How long uploads take, by how many threads fill the windows.
    fn uploads(cuda: &Cuda) -> Result<()> {
        const THREADS: [usize; 4] = [1, 2, 4, 8];
        println!("\n{:>10} up with {THREADS:?} threads at most", "bytes");
        for bytes in [MIB, 16 * MIB, 64 * MIB, 256 * MIB] {
            let memory = cuda.allocate(0, bytes as u64, STREAM)?;
            let source = pattern(7, bytes);
            let mut line = format!("{bytes:>10}");
            for threads in THREADS {
                let options = PinnedOptions {
                    threads,
                    ..PinnedOptions::default()
                };
                let pinned = PinnedPool::new(cuda, 0, options)?;
                let mut times = Vec::new();
                for _ in 0..8 {
                    let begun = Instant::now();
                    up(&pinned, &source, &memory)?;
                    cuda.synchronize(0, STREAM)?;
                    times.push(begun.elapsed());
                }
                line += &format!(" {:>10.1?}", median(&mut times[1..]));
            }
            println!("{line}");
        }
        Ok(())
    }

    fn after_work(cuda: &Cuda) -> Result<()> {
        let after = AfterWork::new(cuda);
        let (mut calls, mut times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (done, is_done) = std::sync::mpsc::channel();
            let begun = Instant::now();
            let tell = move || {
                let _ = done.send(());
            };
            after.run(0, STREAM, Box::new(tell))?;
            calls.push(begun.elapsed());
            is_done.recv_timeout(Duration::from_secs(10))?;
            times.push(begun.elapsed());
        }
        println!(
            "after work: asked in {:?}, called back after {:?}",
            median(&mut calls),
            median(&mut times)
        );
        Ok(())
    }

    fn up(pinned: &PinnedPool, source: &[u8], memory: &DeviceMemory) -> Result<()> {
        ensure!(source.len() as u64 <= memory.bytes());
        // SAFETY: it is all of it, and nobody else has it.
        Ok(unsafe { pinned.upload(source, memory.pointer(), STREAM) }?)
    }

    fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
        let period: Vec<u8> = (0..65_521)
            .map(|at| (at ^ (at >> 7)) as u8 ^ seed)
            .collect();
        let mut all = Vec::with_capacity(bytes + period.len());
        while all.len() < bytes {
            all.extend_from_slice(&period);
        }
        all.truncate(bytes);
        all
    }

    fn median(times: &mut [Duration]) -> Duration {
        times.sort();
        times[times.len() / 2]
    }

    /// What was said instead of giving something.
    fn said<T>(refused: farref_cuda::Result<T>) -> String {
        match refused {
            Ok(_) => "NOT REFUSED".to_owned(),
            Err(error) => format!("refused: {error}"),
        }
    }

    fn say(to: &mut impl Write, value: &impl serde::Serialize) -> Result<()> {
        let bytes = postcard::to_allocvec(value)?;
        to.write_all(&(bytes.len() as u32).to_le_bytes())?;
        to.write_all(&bytes)?;
        Ok(to.flush()?)
    }

    fn hear<T: serde::de::DeserializeOwned>(from: &mut impl Read) -> Result<T> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MIB {
            bail!("too long");
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        Ok(postcard::from_bytes(&bytes)?)
    }
}
