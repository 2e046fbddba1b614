"""One of two gloo processes: trains every method on data and noise of its own. Run by test_distributed."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb
from leanbayes.registry import methods
from tests.contract.networks import NETWORKS, data
from tests.contract.training import train


def main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    result = {}
    for method in sorted(methods()):
        torch.manual_seed(0)
        model = NETWORKS["convolutional"]()
        lb.bayesianize_(model, methods()[method]())
        torch.manual_seed(1 + rank)
        train(model, *data("convolutional"), steps=3, wrapped=DistributedDataParallel(model))
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        model.eval()  # training takes the members of an ensemble in the same order everywhere
        result[method] = (parameters, torch.stack([model(torch.ones(1, 1, 4, 4)).detach() for _ in range(4)]))
    torch.save(result, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
