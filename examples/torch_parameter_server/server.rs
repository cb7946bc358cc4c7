//! A parameter server in Rust for a PyTorch training script that knows nothing of Rust.
//!
//! `train.py` is an ordinary `torch.distributed.rpc` script: its trainers make an object of the class
//! `ParameterServer` on the worker "ps", and call its methods. Here "ps" is this program. It joins their group as rank
//! 0, hosts the group's store, and serves the class under the name that Python has for it.
//!
//! ```text
//! cargo run --release -p farref-examples --example torch_parameter_server
//! ```
//!
//! starts two trainers with `python3` (or what `FARREF_TORCH_PYTHON` names, which must have torch) beside the server.
//! With `--serve` it only serves, as the variables say that PyTorch reads: `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`.

use std::collections::BTreeMap;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use farref_autograd::Tensor;
use farref_torch::{PyException, TorchGroup};

/// Keeps named tensors and changes them by the gradients that trainers push (SGD with momentum).
#[derive(Debug)]
pub struct ParameterServer {
    rate: f64,
    momentum: f64,
    weights: BTreeMap<String, Tensor>,
    velocity: BTreeMap<String, Tensor>,
    steps: u64,
}

// The class is in the script that Python runs, which it calls `__main__`.
#[farref::remote(python = "__main__.ParameterServer")]
impl ParameterServer {
    /// What calling the class makes.
    pub fn new(rate: f64, momentum: f64) -> Self {
        Self {
            rate,
            momentum,
            weights: BTreeMap::new(),
            velocity: BTreeMap::new(),
            steps: 0,
        }
    }

    /// Takes the first weights that anybody offers. True if these were the first.
    pub fn init(&mut self, weights: BTreeMap<String, Tensor>) -> bool {
        if !self.weights.is_empty() {
            return false;
        }
        self.weights = weights;
        true
    }

    /// The weights as they are now. Others may pull at the same time.
    pub fn pull(&self) -> BTreeMap<String, Tensor> {
        self.weights.clone()
    }

    /// Applies gradients, and returns how many pushes there have been. One at a time: it takes `&mut self`.
    pub fn push(&mut self, gradients: BTreeMap<String, Tensor>) -> Result<u64, Problem> {
        for (name, gradient) in gradients {
            let weight = self.weights.get(&name);
            let weight = weight.ok_or_else(|| PyException::new("KeyError", &*name))?;
            let velocity = match self.velocity.get(&name) {
                Some(velocity) => ((&**velocity * self.momentum)? + &*gradient)?,
                None => gradient.into_candle(),
            };
            let weight = (&**weight - (&velocity * self.rate)?)?;
            self.weights.insert(name.clone(), weight.detach().into());
            self.velocity.insert(name, velocity.detach().into());
        }
        self.steps += 1;
        Ok(self.steps)
    }
}

type Problem = Box<dyn std::error::Error + Send + Sync>;

const TRAINERS: u16 = 2;

#[tokio::main]
async fn main() -> Result<()> {
    let serves_only = std::env::args().any(|argument| argument == "--serve");
    let mut group = TorchGroup::new("ps").rank(0);
    let mut trainers = Vec::new();
    if !serves_only {
        let port = free_port()?;
        trainers = start_trainers(port)?;
        group = group.master("127.0.0.1", port).world_size(1 + TRAINERS);
    }
    println!("the server waits for the trainers");
    let worker = group.join().await?;
    println!("the server is in the group: a Rust program among PyTorch workers");
    worker.serve().await?; // until the trainers shut down
    for mut trainer in trainers {
        ensure!(trainer.wait()?.success(), "a trainer failed: see above");
    }
    println!("the server has shut down with them");
    Ok(())
}

fn start_trainers(port: u16) -> Result<Vec<Child>> {
    let python = std::env::var_os("FARREF_TORCH_PYTHON").unwrap_or_else(|| "python3".into());
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/torch_parameter_server/train.py"
    );
    let start = |rank: u16| {
        let mut command = Command::new(&python);
        command
            .arg(script)
            .args(["--role", "trainer", "--rank", &rank.to_string()]);
        command.args(["--world-size", &(1 + TRAINERS).to_string()]);
        command.args(["--master-port", &port.to_string()]);
        // All processes are on this machine, whatever it is called.
        command
            .env("TP_SOCKET_IFNAME", "lo")
            .env("GLOO_SOCKET_IFNAME", "lo");
        command
            .spawn()
            .with_context(|| format!("{command:?}: is there a Python with torch?"))
    };
    (1..=TRAINERS).map(start).collect()
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}
