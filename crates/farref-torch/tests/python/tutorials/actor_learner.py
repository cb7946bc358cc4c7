"""Reinforcement learning: an agent has the policy, observers have environments and ask it what to do.

The agent makes an observer on every other worker, and starts all their episodes at once. Each observer calls the agent
back for every step. After an episode the agent changes its policy.
"""

import torch
import torch.distributed.rpc as rpc
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.distributed.rpc import RRef, remote, rpc_async

from tutorials import numbers

AGENT, OBSERVER = "agent", "observer%d"
EPISODES, STEPS, DISCOUNT, RATE = 12, 12, 0.9, 0.05
LANES = 9


class Lanes:
    """A car on a road of nine lanes. A reward for each step that ends in the middle three; off the road it is over."""

    def __init__(self, seed):
        self.seed, self.episode = seed, 0

    def reset(self):
        self.lane = (self.seed * 5 + self.episode * 3) % LANES
        self.episode += 1
        return self.state()

    def state(self):
        return torch.tensor([self.lane / 8, (8 - self.lane) / 8, 1.0])

    def step(self, action):
        """Left or right: the state after it, the reward, and whether it is over."""
        self.lane += 1 if action == 1 else -1
        over = not 0 <= self.lane < LANES
        return self.state(), 1.0 if 3 <= self.lane <= 5 else 0.0, over


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(3, 8)
        self.actions = nn.Linear(8, 2)

    def forward(self, state):
        return F.softmax(self.actions(torch.relu(self.hidden(state))), dim=1)


class Observer:
    """Has an environment of its own."""

    def __init__(self):
        self.id = rpc.get_worker_info().id
        self.road = Lanes(self.id)

    def run_episode(self, agent_rref, steps):
        state = self.road.reset()
        for _ in range(steps):
            action = agent_rref.rpc_sync().select_action(self.id, state)
            state, reward, over = self.road.step(action)
            agent_rref.rpc_sync().report_reward(self.id, reward)
            if over:
                break


class Agent:
    """Has the policy, and remembers what it did for whom, and what came of it."""

    def __init__(self, world_size):
        self.agent_rref = RRef(self)
        self.policy = numbers.fill(Policy(), seed=5)
        self.optimizer = optim.Adam(self.policy.parameters(), lr=RATE)
        self.ob_rrefs, self.chance, self.rewards, self.log_probs = [], {}, {}, {}
        for rank in range(1, world_size):
            info = rpc.get_worker_info(OBSERVER % rank)
            self.ob_rrefs.append(remote(info, Observer))
            # Each observer has dice of its own: who asks first makes no difference.
            self.chance[info.id] = torch.Generator().manual_seed(info.id)
            self.rewards[info.id], self.log_probs[info.id] = [], []

    def select_action(self, ob_id, state):
        probs = self.policy(state.unsqueeze(0))
        action = torch.multinomial(probs, 1, generator=self.chance[ob_id])
        self.log_probs[ob_id].append(probs.gather(1, action).log().squeeze())
        return action.item()

    def report_reward(self, ob_id, reward):
        self.rewards[ob_id].append(reward)

    def run_episode(self, steps):
        futures = [
            rpc_async(ob_rref.owner(), ob_rref.rpc_sync().run_episode, args=(self.agent_rref, steps))
            for ob_rref in self.ob_rrefs
        ]
        for future in futures:
            future.wait()

    def finish_episode(self):
        """Makes actions that were followed by rewards more likely. Returns the rewards of each observer."""
        total, losses = {}, []
        for ob_id, rewards in self.rewards.items():
            total[ob_id] = sum(rewards)
            worth = 0.0
            for reward, log_prob in zip(reversed(rewards), reversed(self.log_probs[ob_id])):
                worth = reward + DISCOUNT * worth
                losses.append(-log_prob * worth)
            self.rewards[ob_id], self.log_probs[ob_id] = [], []
        self.optimizer.zero_grad()
        loss = torch.stack(losses).sum()
        loss.backward()
        self.optimizer.step()
        return loss.item(), [total[ob_id] for ob_id in sorted(total)]


def run_worker(rank, world_size):
    if rank != 0:
        # Observers only wait for what the agent wants of them.
        rpc.init_rpc(OBSERVER % rank, rank=rank, world_size=world_size)
        return rpc.shutdown()
    rpc.init_rpc(AGENT, rank=rank, world_size=world_size)
    agent = Agent(world_size)
    losses, rewards = [], []
    for episode in range(EPISODES):
        agent.run_episode(STEPS)
        loss, reward = agent.finish_episode()
        losses.append(loss)
        rewards.append(reward)
        print("episode %d: rewards %s" % (episode, reward), flush=True)
    rpc.shutdown()
    return {"losses": losses, "rewards": rewards}
