"""A parameter server in PyTorch: one worker keeps the weights, others train.

Each trainer has data of its own. Again and again it pulls the weights from the server, computes the gradients of a
small network on a batch, and pushes them; the server applies them. Trainers do not wait for each other.

Every process is told who it is, by arguments or by the variables that `torchrun` sets (RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT). The server is rank 0 and is called "ps". With two trainers, in three terminals:

    python train.py --role ps      --rank 0 --world-size 3
    python train.py --role trainer --rank 1 --world-size 3
    python train.py --role trainer --rank 2 --world-size 3

Trainers know the server by its name and by the methods of `ParameterServer`, and by nothing else. So "ps" may be any
process that joins the group under this name and serves this class, in whatever language it is written.
"""

import argparse
import os
import threading

import torch
import torch.distributed.rpc as rpc
import torch.nn.functional as F

SERVER = "ps"
STEPS, BATCH, RATE = 200, 32, 0.1


class ParameterServer:
    """Keeps named tensors and changes them by the gradients that trainers push (SGD with momentum)."""

    def __init__(self, rate: float, momentum: float):
        self.rate, self.momentum = rate, momentum
        self.weights, self.velocity = {}, {}
        self.steps = 0
        self.lock = threading.Lock()

    def init(self, weights: dict) -> bool:
        """Takes the first weights that anybody offers. True if these were the first."""
        with self.lock:
            if self.weights:
                return False
            self.weights = {name: tensor.clone() for name, tensor in weights.items()}
            self.velocity = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
            return True

    def pull(self) -> dict:
        """The weights as they are now."""
        with self.lock:
            return dict(self.weights)

    def push(self, gradients: dict) -> int:
        """Applies gradients, and returns how many pushes there have been. KeyError for a name that is not known."""
        with self.lock:
            for name, gradient in gradients.items():
                self.velocity[name] = self.momentum * self.velocity[name] + gradient
                self.weights[name] = self.weights[name] - self.rate * self.velocity[name]
            self.steps += 1
            return self.steps


class Model(torch.nn.Module):
    """Two layers, enough to tell the arms of two spirals apart."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(6, 32)
        self.out = torch.nn.Linear(32, 2)

    def forward(self, points):
        radius = points.norm(dim=1, keepdim=True)
        features = torch.cat([points, radius, points * torch.cos(4 * radius), torch.sin(4 * radius)], dim=1)
        return self.out(torch.tanh(self.hidden(features)))

    def take(self, weights):
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(weights[name])

    def weights(self):
        return {name: parameter.detach() for name, parameter in self.named_parameters()}


def spirals(count, generator):
    """Points on two spiral arms, with some noise, and the arm of each."""
    arm = torch.randint(0, 2, (count,), generator=generator)
    along = torch.rand(count, generator=generator) * 2 + 0.3
    angle = 2 * along + arm * torch.pi
    points = torch.stack([along * torch.cos(angle), along * torch.sin(angle)], dim=1)
    return points + torch.randn(count, 2, generator=generator) * 0.05, arm


def train(rank, server):
    """Trains until all steps are made. Returns the loss on unseen points before and after."""
    generator = torch.Generator().manual_seed(rank)
    points, arms = spirals(512, generator)
    unseen_points, unseen_arms = spirals(256, torch.Generator().manual_seed(1000))
    torch.manual_seed(0)
    model = Model()
    server.rpc_sync().init(model.weights())

    def unseen():
        model.take(server.rpc_sync().pull())
        with torch.no_grad():
            scores = model(unseen_points)
        right = (scores.argmax(dim=1) == unseen_arms).float().mean().item()
        return F.cross_entropy(scores, unseen_arms).item(), right

    first, _ = unseen()
    for step in range(1, STEPS + 1):
        model.take(server.rpc_sync().pull())
        batch = torch.randint(0, len(points), (BATCH,), generator=generator)
        model.zero_grad()
        loss = F.cross_entropy(model(points[batch]), arms[batch])
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        total = server.rpc_sync().push(gradients)
        if step % 50 == 0:
            now, right = unseen()
            print(f"trainer {rank}: step {step}, {total} on the server, loss {now:.3f}, {right:.0%} right", flush=True)
    return first, unseen()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--role", choices=["ps", "trainer"], required=True)
    parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", 0)))
    parser.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", 3)))
    parser.add_argument("--master-addr", default=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    parser.add_argument("--master-port", default=os.environ.get("MASTER_PORT", "29500"))
    options = parser.parse_args()

    rpc.init_rpc(
        SERVER if options.role == "ps" else f"trainer{options.rank}",
        rank=options.rank,
        world_size=options.world_size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://{options.master_addr}:{options.master_port}"
        ),
    )
    problem = None
    if options.role == "trainer":
        # Trainer 1 makes the server's object and hands a reference to it to the other trainers.
        if options.rank == 1:
            server = rpc.remote(SERVER, ParameterServer, args=(RATE, 0.5))
            others = [
                rpc.rpc_async(f"trainer{rank}", train, args=(rank, server), timeout=0)
                for rank in range(2, options.world_size)
            ]
            results = [train(1, server)] + [other.wait() for other in others]
            for rank, (first, last) in enumerate(results, start=1):
                print(f"trainer {rank}: the loss fell from {first:.3f} to {last:.3f}", flush=True)
                if not last < first / 2:
                    problem = f"trainer {rank} has not learned"
            del server
    # Waits for all workers; until then this one serves calls.
    rpc.shutdown()
    if problem:
        raise SystemExit(problem)


if __name__ == "__main__":
    main()
