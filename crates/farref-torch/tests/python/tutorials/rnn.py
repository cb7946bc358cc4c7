"""A recurrent network over two workers: the large tables of words are on a parameter server, the recurrent part is here.

One distributed optimizer steps the parameters of both.
"""

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn as nn
from torch import optim
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef

from tutorials import numbers

WORDS, WIDTH, HIDDEN, LAYERS, DROPOUT = 20, 6, 8, 2, 0.0
BATCH, LENGTH, BATCHES, EPOCHS, RATE = 5, 6, 4, 4, 0.5


class WordTable(nn.Module):
    """From words to vectors."""

    def __init__(self, words, width, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.table = numbers.fill(nn.Embedding(words, width), seed=1)

    def forward(self, words):
        return self.drop(self.table(words))


class Scores(nn.Module):
    """From what the network remembers to a score for each word."""

    def __init__(self, words, hidden, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.linear = numbers.fill(nn.Linear(hidden, words), seed=2)

    def forward(self, output):
        return self.linear(self.drop(output))


def _call_method(method, rref, *args, **kwargs):
    return method(rref.local_value(), *args, **kwargs)


def _remote_method(method, rref, *args, **kwargs):
    """Runs a method of the object behind the reference where the object is, and waits for what it returns."""
    return rpc.rpc_sync(rref.owner(), _call_method, args=[method, rref] + list(args), kwargs=kwargs)


def _parameter_rrefs(module):
    return [RRef(parameter) for parameter in module.parameters()]


class Reader(nn.Module):
    def __init__(self, ps):
        super().__init__()
        self.table_rref = rpc.remote(ps, WordTable, args=(WORDS, WIDTH, DROPOUT))
        self.lstm = numbers.fill(nn.LSTM(WIDTH, HIDDEN, LAYERS, dropout=DROPOUT), seed=4)
        self.scores_rref = rpc.remote(ps, Scores, args=(WORDS, HIDDEN, DROPOUT))

    def forward(self, words, hidden):
        vectors = _remote_method(WordTable.forward, self.table_rref, words)
        output, hidden = self.lstm(vectors, hidden)
        return _remote_method(Scores.forward, self.scores_rref, output), hidden

    def parameter_rrefs(self):
        return (
            _remote_method(_parameter_rrefs, self.table_rref)
            + _parameter_rrefs(self.lstm)
            + _remote_method(_parameter_rrefs, self.scores_rref)
        )


def sentences():
    """Every word follows from the one before."""
    for number in range(BATCHES):
        words = [torch.arange(BATCH) * 3 + number]
        for _ in range(LENGTH):
            words.append((words[-1] * 7 + 3) % WORDS)
        words[0] = words[0] % WORDS
        text = torch.stack(words)
        yield text[:-1], text[1:]


def run_trainer():
    model = Reader("ps")
    optimizer = DistributedOptimizer(optim.SGD, model.parameter_rrefs(), lr=RATE)
    criterion = nn.CrossEntropyLoss()
    hidden = (torch.zeros(LAYERS, BATCH, HIDDEN), torch.zeros(LAYERS, BATCH, HIDDEN))
    losses = []
    for epoch in range(EPOCHS):
        for words, following in sentences():
            # What the network remembers goes on to the next batch; gradients do not go back.
            hidden = tuple(state.detach() for state in hidden)
            with dist_autograd.context() as context_id:
                scores, hidden = model(words, hidden)
                loss = criterion(scores.reshape(-1, WORDS), following.reshape(-1))
                dist_autograd.backward(context_id, [loss])
                optimizer.step(context_id)
                losses.append(loss.item())
        print("epoch %d: loss %.4f" % (epoch, losses[-1]), flush=True)
    return {"losses": losses}


def run_worker(rank, world_size):
    results = None
    if rank == 1:
        rpc.init_rpc("trainer", rank=rank, world_size=world_size)
        results = run_trainer()
    else:
        rpc.init_rpc("ps", rank=rank, world_size=world_size)
    rpc.shutdown()
    return results
