//! An observer of `actor_learner.py`: the environment is here, the agent that says what to do is in Python.

use farref::RRef;
use farref_autograd::Tensor;
use farref_torch::{PyObject, py_method};

use super::{Result, me};

const LANES: i64 = 9;

/// `Lanes`.
struct Road {
    seed: i64,
    episode: i64,
    lane: i64,
}

impl Road {
    fn reset(&mut self) -> Result<Tensor> {
        self.lane = (self.seed * 5 + self.episode * 3) % LANES;
        self.episode += 1;
        self.state()
    }

    fn state(&self) -> Result<Tensor> {
        let lane = self.lane as f32;
        Ok(Tensor::from_vec(
            vec![lane / 8.0, (8.0 - lane) / 8.0, 1.0],
            3,
        )?)
    }

    /// The reward, and whether it is over.
    fn step(&mut self, action: i64) -> (f64, bool) {
        self.lane += if action == 1 { 1 } else { -1 };
        let reward = if (3..=5).contains(&self.lane) {
            1.0
        } else {
            0.0
        };
        (reward, !(0..LANES).contains(&self.lane))
    }
}

pub(crate) struct Observer {
    id: u32,
    road: Road,
}

#[farref::remote(python = "tutorials.actor_learner.Observer")]
impl Observer {
    pub(crate) fn new() -> Result<Self> {
        let id = me()?.rank();
        let road = Road {
            seed: id.into(),
            episode: 0,
            lane: 0,
        };
        Ok(Self { id, road })
    }

    pub(crate) async fn run_episode(
        &mut self,
        agent_rref: RRef<PyObject>,
        steps: usize,
    ) -> Result<()> {
        let mut state = self.road.reset()?;
        for _ in 0..steps {
            let action = py_method(&agent_rref, "select_action", (self.id, state)).await?;
            let (reward, over) = self.road.step(action);
            state = self.road.state()?;
            py_method::<_, ()>(&agent_rref, "report_reward", (self.id, reward)).await?;
            if over {
                break;
            }
        }
        Ok(())
    }
}
