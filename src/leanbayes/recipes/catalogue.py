"""The names of all recipes, with a line about each. No torch here: the command line lists them without importing it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from .experiment import Experiment

PRESETS = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Recipe:
    """A named experiment; ``load`` imports it."""

    name: str
    summary: str
    load: Callable[[], Experiment]


def _experiment(name: str) -> Any:
    """The module of "sparse-accuracy" is sparse/accuracy.py."""
    folder = next((f"{folder}-" for folder, names in _FOLDERS.items() if name in names), "")
    module = f"{folder}{name}".replace("-", ".", 1).replace("-", "_")
    return import_module(f"{__package__}.{module}").EXPERIMENT


_SUMMARIES = {
    "baselines": "all methods on one network, beside a plain one: accuracy, calibration, out-of-domain",
    "bn-statistics": "nested posteriors, appendix C.2: BatchNorm statistics at a width from few images or all",
    "cascade": "the widths of a nested network as a cascade: accuracy, calibration, MACs and time beside the whole",
    "cifar10": "all families from one trained network, a narrow ResNet-18 on CIFAR-10: quality, shifts, size and time",
    "defaults":
        "every method with nothing but its defaults on trained networks, beside the same training without Bayes",
    "hvae-depth": "ordered latents, section 6.2.2: the depth of a hierarchical VAE by the mode of its posterior",
    "limited-parameters":
        "nested posteriors, table 2: the smallest BN3, sparse variational dropout, averages over widths",
    "lung-segmentation":
        "nested posteriors and ordered latents, table 8: samples of U-Nets beside the masks of four experts (LIDC)",
    "nested-ablation":
        "nested posteriors: learned or uniform tails, with and without noise, decay, shared draws, drawn widths",
    "nested-architectures": "nested posteriors, figure 10 on ResNeXt and MobileNetV2: quality at every width",
    "nested-cost": "nested posteriors, table 3: time of a training step and of a prediction beside IBNN and FN3",
    "nested-tails": "nested posteriors, figure 1: learned tail probabilities by layer",
    "nested-widths":
        "nested posteriors, figure 10: accuracy, ECE and out-of-domain detection at every width, trained once",
    "one-pass": "mean and variance carried through the network once, beside samples: quality, accuracy and cost",
    "ordered-latents":
        "ordered latents, tables 5 to 7: VND-AE at any code length beside VAE, beta-VAE, Joint-VAE, SWAE",
    "patch-calibration":
        "ensemble model patching, tables 4 and 6, figures 4, 5, 7: accuracy and calibration beside dropout and vanilla",
    "patch-corruptions":
        "ensemble model patching, tables 5, 7 and 8: mean corruption errors against the vanilla network",
    "patch-parameters":
        "ensemble model patching, tables 1 and 3: parameters and ensemble sizes, exactly; nothing is trained",
    "patch-pretrained":
        "ensemble model patching on a trained network: accuracy and calibration by how far apart components start",
    "patch-prior":
        "ensemble model patching, figure 3: functions drawn under dropout, EMP and ECMP, and how fine they are",
    "patch-regression":
        "ensemble model patching, tables 12 and 13: nine UCI sets, the published splits trained side by side",
    "patch-samples":
        "ensemble model patching, tables 9 to 11, figure 6: accuracy and calibration by the number of samples",
    "posterior-collapse":
        "ordered latents, appendix A.5: what is left of the KL under a growing weight, VND-AE beside a VAE",
    "progressive-generation":
        "ordered latents, figures 8, 9, 12, 13: one draw at growing code length, the tree of codes, traversals",
    "pruning": "every criterion of pruning, weights and channels: accuracy, NLL and ECE against the share removed",
    "snr-pruning": "nested posteriors, table 1: BN3 cut to size beside a Bayesian network pruned by signal to noise",
    "sparse-accuracy":
        "sparse subspace VI, tables 1 and 2: accuracy, calibration and cost beside dense VI, VD, SBP and RigL",
    "sparse-addition":
        "sparse subspace VI, figure 3 left: new weights by one draw, at the means, or over several steps",
    "sparse-corruption":
        "sparse subspace VI, figure 4: accuracy, loss and calibration on corrupted images, by severity",
    "sparse-cost":
        "sparse subspace VI: measured time and memory of a training step against density, nominal operations beside",
    "sparse-criteria":
        "sparse subspace VI, figures 2 right and 5, tables 5 to 7: removal criteria by sigma, and what they agree on",
    "sparse-density": "sparse subspace VI, figure 2 left: accuracy and calibration against density, beside RigL's",
    "sparse-equal-time":
        "what plain, dense variational and sparse networks of several widths have learned after the same seconds",
    "sparse-init": "sparse subspace VI, figure 3 right: sigma of new weights; and training without the KL's warm-up",
    "sparse-ood": "sparse subspace VI, table 3: AUROC and AUPR of out-of-domain data, beside dense VI and RigL",
    "student":
        "nested posteriors, table 4: students of a quarter of the channels by MMD, KL and means, beside labels alone",
    "variance-accuracy":
        "variance networks, table 1: one sample, the means, an ensemble; LeNet-5 on MNIST, VGG-like on CIFAR-10",
    "variance-attack":
        "targeted attacks on plain, dropout, deep and variance ensembles: success rate and entropy by iteration",
    "variance-collapse":
        "deterministic accuracy of variance networks: end to end, by log alpha, and (paper) 200 epochs from -5",
    "variance-criterion": "kappa through the phase transition, and sparse ensembles: zeroed or at the means, by kappa",
    "variance-parameterisations":
        "variance networks, table 2: ELBO and accuracy with alpha by layer, neuron or weight, and with sigma; LeNet-5",
    "variance-prior":
        "variance networks, appendix B: a proper prior, Student's t with 1e-16 degrees of freedom; LeNet-5",
    "variance-zero-mean":
        "variance networks, appendix D: the first dense layer without means from the start; LeNet-5, VGG-like",
}  # fmt: skip
_FOLDERS = {
    "compress": ("cascade", "one-pass", "pruning", "student"),
    "nested": ("bn-statistics", "limited-parameters", "snr-pruning"),
    "segmentation": ("lung-segmentation",),
    "latents": ("hvae-depth", "ordered-latents", "posterior-collapse", "progressive-generation"),
}
RECIPES = {name: Recipe(name, text, partial(_experiment, name)) for name, text in _SUMMARIES.items()}


def find(name: str, preset: str = "smoke") -> Recipe:
    """The recipe of that name.

    >>> find("baseline")
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: recipe: expected one of baselines, ..., received 'baseline'; did you mean 'baselines'?
    """
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"recipe: expected one of {', '.join(RECIPES)}, received {name!r}{hint}")
    if preset not in PRESETS:
        raise ConfigError(f"preset of {name}: expected one of {', '.join(PRESETS)}, received {preset!r}")
    return RECIPES[name]
