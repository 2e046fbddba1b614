"""Many small perceptrons trained side by side: a network is one slice of a leading dimension.

The networks are the library's own, made by `bayesianize_`; their state is stacked, trained here, and written back to
them slice by slice, so that `predict` takes them like any other. A step of twenty small networks is a few large
operations in the place of very many small ones, and compiled in long trainings.

Activations are (network, feature, row): BatchNorm of all networks is then one call of torch's, whose channels are the
features of all of them, and a Linear layer is one batched product. Training under given assignments equals that of the
single networks; tests/recipes/test_patch_stack.py holds them against each other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import stack_module_state

from ...convert.trace import original
from ...kl import kl as of
from ...layers.bayes import BayesLayer
from ...layers.contract import features
from ...layers.perturb import perturb
from ...methods.patch.mixture import Assignment
from ...posteriors import Gaussian
from ...posteriors.scale import rho_from_std, std_from_rho
from ...sampling import sites

Noise = Mapping[str, "Tensor"]
COMPILED = 5000  # steps from which on compiling them pays


@dataclass(frozen=True)
class Stack:
    """N networks of one architecture, a Sequential of BatchNorm1d, Linear, ReLU and Dropout, plain or converted.

    layers: those of the first, which say what is computed. plain: what these were before they were converted. widths:
    the features that each is given. parameters, buffers: the state of all, (N, ...). sites: the assignments of its
    mixtures, by name. rates: of the dropout layers, (N, 1, 1), one for each network.
    """

    layers: dict[str, Any]
    plain: dict[str, Any]
    widths: dict[str, int]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    sites: dict[str, Any]
    rates: Tensor

    def __len__(self) -> int:
        return self.rates.shape[0]


def stacked(models: Sequence[nn.Sequential]) -> Stack:
    """The networks as one stack, with copies of their state.

    >>> from torch import nn
    >>> len(stacked([nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)) for _ in range(4)]))
    4
    """
    parameters, buffers = stack_module_state(list(models))
    rates = torch.tensor([next((m.rate for m in model if hasattr(m, "rate")), 0.0) for model in models])
    first = copy.deepcopy(models[0])
    mixtures = {name: site for name, site in sites(first).items() if isinstance(site, Assignment)}
    layers = dict(first.named_children())
    plain = {name: original(layer) for name, layer in layers.items()}
    return Stack(layers, plain, _widths(layers), parameters, buffers, mixtures, rates.reshape(-1, 1, 1))


def write_back(stack: Stack, models: Sequence[nn.Sequential]) -> None:
    """Give every network the state of its slice."""
    state = {**stack.parameters, **stack.buffers}
    for number, model in enumerate(models):
        model.load_state_dict({name: tensor[number].detach().clone() for name, tensor in state.items()})


def noise_of(stack: Stack, rows: int) -> Noise:
    """All that is random in a pass of every network over so many rows each, by the name of its site or layer.

    Assignments are indices, all components as likely; a dropout layer has whole numbers of 16 bits (four at the price
    of one of 64), and one with Gaussian weights normal numbers, for every datum.
    """
    count = len(stack)
    noise = {name: torch.randint(len(s.probabilities), (count, *s.shape)) for name, s in stack.sites.items()}
    for name, layer in stack.layers.items():
        if isinstance(stack.plain[name], nn.Dropout):
            size = math.prod(shape := (count, stack.widths[name], rows))
            bits = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
            noise[name] = bits.view(torch.int16)[:size].view(shape)
        elif isinstance(layer, BayesLayer):
            shape = count, stack.plain[name].out_features, rows
            noise[name] = perturb(torch.zeros(shape), torch.ones(shape))
    return noise


def forward(stack: Stack, x: Tensor, noise: Noise) -> Tensor:
    """Outputs of a training pass, (N, outputs, rows) for inputs (N, features, rows); BatchNorm's statistics move on."""
    kinds: dict[type, Callable[..., Tensor]] = {
        nn.BatchNorm1d: _norm,
        nn.Linear: _linear,
        nn.Dropout: _dropout,
        nn.ReLU: lambda stack, name, x, noise: x.relu(),
    }
    for name, layer in stack.plain.items():
        x = kinds[type(layer)](stack, name, x, noise)
    return x


def kl(stack: Stack) -> Tensor:
    """The sum of all Gaussian weights' KL, over all networks, under a prior that looks at one weight at a time."""
    total = torch.zeros(())
    for name, layer in stack.layers.items():
        for one, prior in layer.priors.items() if isinstance(layer, BayesLayer) else ():
            loc, rho = (stack.parameters[f"{name}.posteriors.{one}.{part}"] for part in ("loc", "rho"))
            total = total + of(Gaussian(loc, rho), prior).sum()
    return total


@dataclass(frozen=True)
class Schedule:
    """How long, and with what: Adam at a constant rate, with L2 regularisation `decay` of everything it trains.

    learn_noise: fit the noise's standard deviation and minimise the negative ELBO, as mean-field networks need;
    otherwise the mean squared error, in which a fixed noise is a constant.
    """

    epochs: int = 4000
    batch_size: int = 100
    lr: float = 1e-3
    decay: float = 0.01
    learn_noise: bool = False


def train(
    stack: Stack,
    x: Tensor,
    y: Tensor,
    schedule: Schedule,
    seed: int = 0,
    tell: Callable[[int], None] = lambda epoch: None,
) -> Tensor:
    """Train all networks, each on rows of its own: x (N, rows, features), y (N, rows, outputs).

    Every network has its own order of the data in every epoch, and the last batch of an epoch is what is left over.
    tell: called with the number of every epoch. Returns the standard deviation of the noise (N,), ones if not learned.
    """
    count = x.shape[1]
    inputs, targets = x.transpose(1, 2).contiguous(), y.transpose(1, 2).contiguous()
    order_of = torch.Generator().manual_seed(seed)
    raw = rho_from_std(torch.ones(len(stack), 1, 1)).requires_grad_(schedule.learn_noise)
    groups = [{"params": list(stack.parameters.values()), "weight_decay": schedule.decay}]
    if schedule.learn_noise:
        groups.append({"params": [raw], "weight_decay": 0.0})
    adam = torch.optim.Adam(groups, lr=schedule.lr, fused=True)

    def loss_of(a: Tensor, b: Tensor, noise: Noise) -> Tensor:
        errors = (forward(stack, a, noise) - b).square().sum(1).mean(1)  # (N,)
        if not schedule.learn_noise:
            return errors.sum()  # networks are apart: the sum over them trains each
        std = F.softplus(raw).flatten()
        return (errors / (2 * std.square()) + std.log()).sum() + kl(stack) / count

    long = schedule.epochs * (count // schedule.batch_size) >= COMPILED
    step = _compiled(loss_of) if long else loss_of
    for epoch in range(schedule.epochs):
        tell(epoch)
        order = torch.rand(len(stack), 1, count, generator=order_of).argsort(2)
        mixed = [t.gather(2, order.expand(-1, t.shape[1], -1)) for t in (inputs, targets)]
        for a, b in zip(*(t.split(schedule.batch_size, 2) for t in mixed), strict=True):
            loss = step(a, b, noise_of(stack, a.shape[2]))
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
    return F.softplus(raw.detach()).flatten()


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function as torch compiles it for the shapes it meets; itself where that fails: without a C++ compiler."""
    torch.compiler.reset()  # kernels of earlier stacks count towards the few that torch keeps of a function
    chosen = torch.compile(function, dynamic=False)

    def run(*args: Any) -> Tensor:
        nonlocal chosen
        try:
            return chosen(*args)
        except RuntimeError:  # one of the function's own comes again
            if chosen is function:
                raise
            chosen = function
            return function(*args)

    return run


def _norm(stack: Stack, name: str, x: Tensor, noise: Noise) -> Tensor:
    plain = stack.plain[name]
    statistics = [stack.buffers[f"{name}.{one}"] for one in ("running_mean", "running_var")]
    stack.buffers[f"{name}.num_batches_tracked"].add_(1)
    gamma, beta = (_parameter(stack, name, one, noise) for one in ("weight", "bias"))
    channels = x.reshape(1, -1, x.shape[2])  # a channel is a feature of one network
    flat = [t.view(-1) for t in (*statistics, gamma, beta)]
    return F.batch_norm(channels, flat[0], flat[1], flat[2], flat[3], True, plain.momentum, plain.eps).view(x.shape)


def _linear(stack: Stack, name: str, x: Tensor, noise: Noise) -> Tensor:
    if not isinstance(stack.layers[name], BayesLayer):
        weight, bias = (_parameter(stack, name, one, noise) for one in ("weight", "bias"))
        return torch.baddbmm(bias.unsqueeze(2), weight, x)
    at = {one: stack.parameters[f"{name}.posteriors.{one}"] for one in ("weight.loc", "bias.loc")}
    spread = {
        one: std_from_rho(stack.parameters[f"{name}.posteriors.{one}.rho"]).square() for one in ("weight", "bias")
    }
    mean = torch.baddbmm(at["bias.loc"].unsqueeze(2), at["weight.loc"], x)
    variance = torch.baddbmm(spread["bias"].unsqueeze(2), spread["weight"], x.square())
    return mean + variance.sqrt() * noise[name]  # of random biases too: never zero


def _dropout(stack: Stack, name: str, x: Tensor, noise: Noise) -> Tensor:
    uniform = (noise[name] + (2**15 + 0.5)) / 2**16
    return x * (uniform >= stack.rates) / (1 - stack.rates)


def _widths(layers: Mapping[str, nn.Module]) -> dict[str, int]:
    """The features that each layer is given."""
    width, found = next(filter(None, (features(layer, "inputs") for layer in layers.values()))), {}
    for name, layer in layers.items():
        found[name] = width
        width = features(layer, "outputs") or width
    return found


def _parameter(stack: Stack, name: str, one: str, noise: Noise) -> Tensor:
    """A parameter of all networks (N, ...): the components drawn where it is a mixture."""
    if (plain := stack.parameters.get(f"{name}.{one}")) is not None:
        return plain
    centres = stack.parameters[f"{name}.posteriors.{one}.loc"]
    own = noise.get(f"{name}.posteriors.{one}.assignment")
    index = noise[f"{name}.posteriors.weight.assignment"] if own is None else own  # one for the layer is named once
    index = index.reshape(len(stack), -1).expand(-1, centres.shape[2]).unsqueeze(1)
    return centres.gather(1, index).squeeze(1)
