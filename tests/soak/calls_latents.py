"""What may be called of the autoencoders and the probabilistic U-Nets."""

from __future__ import annotations

import torch
from torch import nn

import leanbayes as lb

from .calls_values import LABELLED, Maker, Target, inputs, several

CONFIGS = (lb.OrderedLatents, lb.GaussianLatents, lb.JointLatents, lb.PointLatents)
LATENTS = several(*(kind(3) for kind in CONFIGS))


def _encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU())


def _decoder(latents: int = 3) -> nn.Module:
    return nn.Linear(latents, 4)


def _model() -> lb.Autoencoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return lb.Autoencoder(_encoder(), _decoder(), lb.OrderedLatents(3), shape=(4,))


def targets() -> list[Target]:
    """The functions and classes, each with valid arguments."""
    autoencoder = {"encoder": [_encoder], "decoder": [_decoder], "shape": several((4,), [4]),
                   "latents": several(lb.OrderedLatents(3), lb.GaussianLatents(3), lb.PointLatents(3))}  # fmt: skip
    data: list[Maker] = [inputs, lambda: inputs().numpy(), *LABELLED]
    asked = {"model": [_model], "data": data, "task": several("regression", lb.Regression(std=1.0)),
             "lengths": several(None, (1, 3)), "samples": several(1, 2), "importance": several(0, 2),
             "k": several(1, 3), "extractor_name": several("a"), "seed": several(0, 3)}  # fmt: skip
    features = asked | {"extractor": [_encoder], "generated": several(8)}
    image = {"latents": LATENTS, "shape": several((1, 8, 8), (3, 16, 16)), "backbone": several("small"),
             "width": several(2)}  # fmt: skip
    unet = {"trunk": [lambda: nn.Conv2d(1, 3, 1)], "latents": several(lb.OrderedLatents(3), lb.GaussianLatents(3)),
            "shape": several((1, 8, 8), [1, 6, 9]), "num_classes": several(1, 3), "widths": several((2,), [2, 3]),
            "norm": several("batch", "none"), "hidden": several(None, 2), "layers": several(2, 4),
            "ignore_index": several(-100, 255)}  # fmt: skip
    ready = {name: unet[name] for name in ("latents", "shape", "num_classes", "widths", "norm")}
    return [
        Target("ProbabilisticUNet", lb.ProbabilisticUNet, unet, ("trunk", "latents", "shape"), 0.5),
        Target("probabilistic_unet", lb.probabilistic_unet, ready, ("latents", "shape", "widths"), 0.5),
        Target("Autoencoder", lb.Autoencoder, autoencoder, tuple(autoencoder), 0.5),
        Target("image_autoencoder", lb.image_autoencoder, image, ("latents", "shape", "width"), 0.5),
        Target("evaluate_generation", lb.evaluate_generation, asked, ("model", "data", "task"), 0.8),
        Target("evaluate_generation features", lb.evaluate_generation, features,
               ("model", "data", "task", "extractor", "generated", "k"), 0.4),
        Target("set_length_", lb.set_length_, {"model": [_model], "length": several(None, 1, 3)},
               ("model", "length"), 0.5),
    ]  # fmt: skip
