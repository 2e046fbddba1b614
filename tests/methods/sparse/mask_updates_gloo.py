"""One of two gloo processes with data of its own, sparse weights that move after every step. Run by test_subspace."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb
from leanbayes.training.callbacks import State, notify


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))


def batch(rank):
    return torch.randn(16, 12, generator=torch.Generator().manual_seed(rank)), torch.arange(16) % 3


def expected(model):
    """Places of the first layer by the gradient of a dense twin over the data of both processes."""
    twin, q = network(), model[0].posteriors["weight"]
    for layer, other in zip(model, twin, strict=True):
        if isinstance(other, nn.Linear):
            other.weight.data = layer.posteriors["weight"].mean.detach()
    x, y = (torch.cat(parts) for parts in zip(batch(0), batch(1), strict=True))
    F.cross_entropy(twin(x), y).backward()
    scores = twin[0].weight.grad.flatten().abs().index_fill(0, q.index.long(), -1.0)
    return set(scores.topk(int(0.3 * len(q.index))).indices.tolist())


def main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = network()
    lb.bayesianize_(model, lb.Rigl(density=0.1, interval=1, schedule="constant", until=1.0, keep_returning=False))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hooks, state = lb.callbacks(model), State(model, optimizer)
    notify(hooks, "fit_start", state)
    wanted = expected(model)
    before = set(model[0].posteriors["weight"].index.tolist())
    x, y = batch(rank)
    for step in range(3):
        notify(hooks, "before_step", state)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        notify(hooks, "after_backward", state)
        optimizer.step()
        state.step += 1
        notify(hooks, "after_step", state)
        if step == 0:
            found = set(model[0].posteriors["weight"].index.tolist()) - before
    content = {"model": model.state_dict(), "moved": hooks[0].updates[-1][1], "expected": wanted, "found": found}
    torch.save(content, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
