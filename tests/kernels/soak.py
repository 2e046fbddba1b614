"""Memory over time: predictions of a sparse network on images of many sizes, and in threads that come and go."""

from __future__ import annotations

import gc
import random
import threading

import torch
from torch import nn

from leanbayes.kernels import buffers
from leanbayes.layers.bayes import BayesLayer
from leanbayes.methods.sparse.posterior import SparseGaussian
from leanbayes.priors import Normal

MB = 2**20


def resident():
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def network(width=32):
    """A small sparse convolutional network for images of any size."""
    torch.manual_seed(0)
    convs = [
        nn.Conv2d(3, width, 3, padding=1),
        nn.Conv2d(width, width, 3, padding=1),
        nn.Conv2d(width, 10, 3, padding=1),
    ]
    layers = []
    for conv in convs:
        q = SparseGaussian.from_tensor(conv.weight, conv.weight.numel() // 20, 0.1)
        layers += [BayesLayer(conv, {"weight": q}, {"weight": Normal()}), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())


def over_sizes(sizes, predictions, batch=4):
    """Bytes in memory after a prediction on the largest size, after one on each, and at the highest point later."""
    model, rng = network(16), random.Random(0)
    later = (rng.choice(sizes) for _ in range(predictions - len(sizes) - 1))
    seen = []
    with torch.no_grad():
        for size in [max(sizes), *sizes, *later]:
            model(torch.randn(batch, 3, size, size)).add(0.0)
            seen.append(resident())
    return seen[0], seen[len(sizes)], max(seen[len(sizes) :])


def over_threads(count, size=32, batch=16):
    """Growth in bytes from the tenth to the last of so many threads, one after the other, each with one prediction."""
    model, start, failed = network(), 0, []

    def predict():
        try:
            out = model(torch.randn(batch, 3, size, size)) + 0.0
            out.square().mean().backward()  # the backward pass needs most working memory
        except BaseException as error:
            failed.append(error)

    for i in range(count):
        thread = threading.Thread(target=predict)
        thread.start()
        thread.join()
        if i == 9:
            gc.collect()
            start = resident()
    if failed:
        raise failed[0]
    return resident() - start


def kept():
    """Bytes that the kernels' buffers keep, in use or free."""
    return sum(buffers.kept())
