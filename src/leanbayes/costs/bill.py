"""The bill: what each layer costs and what they come to, as numbers and as a table."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerCost:
    """The share of one module; the numbers mean what they mean in `Cost`.

    passes: how often a forward pass in training does these MACs: 2 where a mean and a variance (or a deviation) are
    computed side by side, as local reparameterisation and Flipout do, else 1.
    path: of a layer with a sparse weight alone: "compiled", which computes at the nonzeros, or "dense: " and why; then
    the MACs are nominal, and the machine does those of the whole tensor.
    """

    name: str
    kind: str
    parameters: int
    active_parameters: int
    macs: int
    bytes: int
    passes: int = 1
    path: str = ""


@dataclass(frozen=True)
class Cost:
    """The cost of a model; the layers' shares sum to the totals.

    parameters: stored numbers, a tensor shared by several layers counted once. A Gaussian weight has two.
    active_parameters: those still in use, as modules with ``active_parameters()`` say (pruned posteriors) and a set
    width leaves; all of the others. A stored zero counts as active: only a mask makes it otherwise.
    macs: multiply-accumulates of matrix products and convolutions in one forward pass for one datum at one draw of the
    weights (their means where there are any): the count for the example batch over its size. Of a sparse weight those
    at its nonzeros; of a nested network at a set width those of the channels that it keeps.
    bytes: of parameters and buffers. sites: how many independent random tensors a draw needs.
    plain_parameters: those of the network that is not Bayesian.
    random_numbers: how many a draw of the whole network takes: what it needs in memory beside parameters.
    ensemble_log10: the logarithm of how many networks can be drawn: K to the number of indices for patches, 2 to the
    number of masked inputs for dropout, the members of an ensemble; infinite for continuous posteriors, 0 for one
    network (ensemble model patching, table 3).
    """

    parameters: int
    trainable_parameters: int
    active_parameters: int
    macs: int
    bytes: int
    sites: int
    batch_size: int
    layers: tuple[LayerCost, ...] = ()
    plain_parameters: int = 0
    random_numbers: int = 0
    ensemble_log10: float = 0.0

    @property
    def overhead(self) -> float:
        """Parameters beyond those of the plain network, as a share of these."""
        return self.parameters / self.plain_parameters - 1 if self.plain_parameters else 0.0

    def training_flops(self, data: int = 1, epochs: int = 1) -> int:
        """Nominal operations of training: 2 a MAC, times the layer's passes, times 3 for forward and backward.

        As sparse subspace VI counts: dense VI of ResNet-18 on 50,000 images of CIFAR-10 for 200 epochs has
        12 * 555.4M * 50,000 * 200 = 6.67e16. Updates of masks and the optimiser's own arithmetic are left out, there
        and here.
        """
        return 6 * data * epochs * sum(layer.passes * layer.macs for layer in self.layers)

    def inference_flops(self, data: int = 1, samples: int = 1) -> int:
        """Nominal operations of prediction: 2 a MAC for every datum and every whole draw of the weights."""
        return 2 * data * samples * self.macs

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "layers": [dataclasses.asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        rows = [("layer", "kind", "parameters", "active", "MACs", "bytes")]
        for x in (*self.layers, LayerCost("total", "", self.parameters, self.active_parameters, self.macs, self.bytes)):
            numbers = (x.parameters, x.active_parameters, x.macs, x.bytes)
            rows.append((x.name, x.kind, *(f"{n:,}" for n in numbers)))  # type: ignore[arg-type]
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = [
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        rule = "-" * len(lines[0])
        notes = [
            f"{self.trainable_parameters:,} parameters are trainable; {self.sites} random sites; MACs are for one datum"
        ]
        if self.sites:
            size = "infinitely many" if math.isinf(self.ensemble_log10) else f"10^{self.ensemble_log10:.4g}"
            notes.append(f"{100 * self.overhead:.3g} % more parameters than the plain network; {size} networks")
        if sparse := [layer for layer in self.layers if layer.path]:
            slow = [f"  {x.name}: {x.path.removeprefix('dense: ')}" for x in sparse if x.path != "compiled"]
            notes.append(f"{len(sparse) - len(slow)} of {len(sparse)} sparse layers take the compiled path")
            notes += ["the others compute as if they were dense:", *slow] if slow else []
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *notes])
