"""The ordering unit: a distribution over the widths of one group of channels, and the mask that a pass uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConversionError
from ..sampling import Site, context, handed_over
from .downhill import coarser_noise, gumbel_noise, slope
from .nested import nested_masks
from .ordered import Ordered
from .tails import keep_logits, log_keep, log_keep_from_logits, log_tails
from .terms import expected_width

if TYPE_CHECKING:
    from ..convert.channels import Group, Use
    from .placement import Steps

LEGACY_BOUND = 5.0  # the authors clamp their raw parameters to [-5, 5]


class Draw(Site):
    """The Gumbel noise of one pass: the random site of the units that share it, so that their widths vary together.

    nodes: how many numbers; a unit of fewer nodes coarsens them. units: who shares it.
    current: the numbers of the present pass, or of the last one.
    """

    device = torch.device("cpu")  # a few numbers: drawn there for `predict`, and moved to where they are needed

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.current: Tensor | None = None
        self.units: list[OrderingUnit] = []

    def cycle(self, balanced: bool | None = None, alone: bool = True) -> int | None:
        """The number of samples after which they repeat: 1 if every width is set, else None."""
        return 1 if self.units and all(unit.width or unit.free for unit in self.units) else None

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Standard Gumbel numbers, (nodes,): one network a sample."""
        return gumbel_noise((self.nodes,), generator=generator)

    def numbers(self, like: Tensor, rows: int | None) -> Tensor:
        """The noise of the context, or that of this pass, drawn by the first unit that reads it.

        rows: numbers for each of so many data, (rows, nodes); None for one set, (nodes,).
        """
        if (given := handed_over(self)) is not None:
            return given.to(like)
        shape = (self.nodes,) if rows is None else (rows, self.nodes)
        if self.current is None:
            self.current = gumbel_noise(shape, dtype=like.dtype, device=like.device)
        elif self.current.shape != shape:
            raise ConversionError(
                f"one mask a datum: expected {len(self.current)} data in every layer of a pass, received {rows}; "
                "this network moves data between dimensions, use per_sample=False"
            )
        return self.current.to(like)

    def extra_repr(self) -> str:
        """How many numbers, for how many units."""
        return f"nodes={self.nodes}, units={len(self.units)}"


class OrderingUnit(Ordered):
    """Tail probabilities beta of K nodes, the ordered groups of a group of channels, and a draw of the mask z.

    Node 1 is the base groups, which always stay; node j > 1 is one group, kept with probability
    S_j = sum_{k >= j} beta_k (variational nested dropout, equations 1 and 2). Whoever consumes the channels multiplies
    its input by z.

    group, steps: whose channels, and how they are cut.
    log_beta: (K,), where learned tails start, or what fixed ones are.
    log_prior: (K,), the tails of the prior.
    learned: whether the logits of mu are a parameter.
    hard: ordered masks with a straight-through gradient, or soft samples of Downhill.
    per_sample: a mask for each datum of a training batch.
    tail_weight: of KL(q || p) in the loss, which is not divided by the number of data: z is drawn anew for every batch.
    width_penalty: lambda of the ordered l0 penalty lambda sum_j j beta_j (equation 13).
    legacy: as the authors' code has it: masks on the producers' outputs, in front of their norm layers, probabilities
        handed over as if they were logarithms, raw parameters clamped to [-5, 5].

    skip: leave dropped channels out of the arithmetic where that can be done (`leanbayes.methods.nested.narrow`,
        which sets narrows): at set widths, and at widths drawn from fixed tails. Learned ones need the outputs of
        dropped channels for their gradient.

    free: where no width is set, whether only training draws one, and everything else runs at full width.

    >>> from leanbayes.convert.channels import Group
    >>> from leanbayes.ordering import uniform_logits
    >>> from leanbayes.ordering.placement import cut
    >>> group = Group("conv", 8)
    >>> steps = cut(group, groups=4, base=2)
    >>> unit = OrderingUnit(group, steps, log_tails(uniform_logits(3)), log_tails(uniform_logits(3)))
    >>> unit.tails().exp(), unit.kept_channels(2)
    (tensor([0.3333, 0.3333, 0.3333], grad_fn=<ExpBackward0>), [0, 1, 2, 3, 4, 5])
    """

    temperature: Tensor
    node_of: Tensor
    log_prior: Tensor
    log_beta: Tensor

    def __init__(
        self,
        group: Group,
        steps: Steps,
        log_beta: Tensor,
        log_prior: Tensor,
        *,
        learned: bool = True,
        temperature: float = 2.0,
        hard: bool = True,
        per_sample: bool = False,
        share: bool = True,
        tail_weight: float = 0.0,
        width_penalty: float = 0.0,
        legacy: bool = False,
        skip: bool = False,
    ) -> None:
        super().__init__(group.name, steps.nodes)
        self.group, self.steps, self.base = group, steps, steps.base
        self.hard, self.per_sample, self.share, self.legacy = hard, per_sample, share, legacy
        self.skip, self.narrows = skip, False
        self.tail_weight, self.width_penalty = tail_weight, width_penalty
        self.free = True
        self.logits: nn.Parameter | None = None
        if learned:
            self.logits = nn.Parameter(keep_logits(log_beta).detach().clone())
        else:
            self.register_buffer("log_beta", log_beta, persistent=False)
        self.register_buffer("log_prior", log_prior, persistent=False)
        self.register_buffer("temperature", torch.full_like(log_prior[0], temperature))
        self.register_buffer("node_of", torch.tensor(steps.node_of, device=log_beta.device), persistent=False)
        self.draw = Draw(steps.nodes)

    @property
    def kept(self) -> int:
        """The number of nodes that a pass keeps; 0 if it draws them."""
        if self.width or not (context.mean_only or (self.free and not self.training)):
            return self.width
        return self.limit

    def tails(self) -> Tensor:
        """log beta_j, (K,); what lies beyond the limit is never drawn."""
        return self.within_limit(self._tails())

    def keep(self) -> Tensor:
        """S_j, the probability that node j is kept, (K,)."""
        if self.logits is not None and self.limit == self.nodes:
            return log_keep_from_logits(self._raw(self.logits)).exp()
        return log_keep(self.tails()).exp()

    def mask(self, x: Tensor, use: Use) -> Tensor | None:
        """z at the features of a module's input (or output), in a shape that broadcasts to it; None for all ones."""
        z = self._nodes(x)
        if z is None:
            return None
        z = self.spread(z, use, x.shape[use.dim]).to(x.dtype)
        behind = (1,) * (-use.dim - 1)
        if z.ndim == 1:
            return z.reshape(-1, *behind)
        return z.reshape(len(z), *(1,) * (x.ndim + use.dim - 1), -1, *behind)

    def known_nodes(self) -> int | None:
        """The number of nodes that this pass keeps if it can leave the others out, else None."""
        if not self.narrows or self.rescale:
            return None
        if kept := self.kept:
            return kept
        if self.logits is not None or not self.hard or self.per_sample:
            return None
        try:
            return self.drawn(self.draw.numbers(self.log_prior, None))
        except RuntimeError:  # vmap: there is no one number
            return None

    def drawn(self, noise: Tensor) -> int:
        """How many nodes a hard mask keeps under Gumbel numbers of `draw`."""
        return int((self.tails() + self._coarser(noise.to(self.log_prior))).argmax()) + 1

    def spread(self, values: Tensor, use: Use, features: int) -> Tensor:
        """Values of nodes (..., K) at the features of a module, (..., features); 1 at features of other groups."""
        at = values.index_select(-1, self.node_of)
        if use.block > 1:
            at = at.repeat_interleave(use.block, -1)
        behind = features - use.offset - at.shape[-1]
        return F.pad(at, (use.offset, behind), value=1.0) if use.offset or behind else at

    def kept_channels(self, nodes: int) -> list[int]:
        """The channels of the group that a width of so many nodes keeps."""
        return [channel for channel, node in enumerate(self.steps.node_of) if node < nodes]

    def unscaled_terms(self) -> Iterator[Tensor]:
        """Terms that the loss does not divide by the data, for `leanbayes.kl.unscaled_sum`."""
        if self.logits is None:
            return
        log_beta = self._tails()
        if self.tail_weight:
            # `tail_kl` without its care for probabilities of zero, which logits do not give: this runs every step
            yield self.tail_weight * (log_beta.exp() * (log_beta - self.log_prior)).sum()
        if self.width_penalty:
            yield self.width_penalty * expected_width(log_beta)

    def _tails(self) -> Tensor:
        if self.logits is None:
            return self.log_beta
        return log_tails(self._raw(self.logits))

    def _raw(self, logits: Tensor) -> Tensor:
        return logits.clamp(-LEGACY_BOUND, LEGACY_BOUND) if self.legacy else logits

    def _nodes(self, x: Tensor) -> Tensor | None:
        """z, (K,) or (batch, K); None for all ones."""
        if kept := self.kept:
            if kept == self.nodes and not self.rescale:
                return None
            z = (torch.arange(self.nodes, device=x.device) < kept).to(self.log_prior)
            return z * self.keep() if self.rescale else z
        log_beta = self.tails()
        noise = self._noise(len(x) if self._each(x) else None)
        if self.legacy:
            return slope(log_beta.exp(), self.temperature, noise, self.hard)
        if self.logits is None and self.hard:
            return nested_masks(log_beta, noise)
        return slope(log_beta, self.temperature, noise, self.hard)

    def _noise(self, rows: int | None) -> Tensor:
        return self._coarser(self.draw.numbers(self.log_prior, rows))

    def _coarser(self, noise: Tensor) -> Tensor:
        """The numbers of the draw for these nodes; under fixed tails, units of all sizes are then equally wide."""
        finest = next((unit for unit in self.draw.units if unit.nodes == self.draw.nodes), self)
        fixed = self.logits is None and finest.logits is None and finest.nodes > self.nodes
        return coarser_noise(noise, self.nodes, finest.tails().to(noise) if fixed else None)

    def _each(self, x: Tensor) -> bool:
        """Whether every datum has its own mask: in training, unless the context has the noise."""
        given = context.draws is not None and id(self.draw) in context.draws
        return self.per_sample and self.training and not given

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickle of version 0.1 knows these by its group and its steps alone."""
        super().__setstate__(state)
        known = {"name": self.group.name, "nodes": self.steps.nodes, "base": self.steps.base}
        self.__dict__.update({name: value for name, value in known.items() if name not in self.__dict__})

    def get_extra_state(self) -> Tensor:
        return torch.cat([super().get_extra_state(), torch.tensor([int(self.free), *self.steps.of])])

    def completed(self, state: Tensor) -> Tensor:
        """The state as version 0.1 wrote it, which drew widths by default and kept channels in order."""
        by_number = self.steps.of if self.group.constraints else sorted(self.steps.of)
        return torch.cat([state, torch.tensor([0, *by_number], dtype=state.dtype, device=state.device)])

    def set_extra_state(self, state: Tensor) -> None:
        free, *of = (self.completed(state) if len(state) == 3 else state)[3:].tolist()
        if sorted(of) != sorted(self.steps.of):
            raise ConversionError(f"'{self.name}': expected {self.steps.groups} ordered groups, received others")
        super().set_extra_state(state[:3])
        self.free, self.steps = bool(free), replace(self.steps, of=tuple(of))
        self.node_of.copy_(torch.tensor(self.steps.node_of))

    def extra_repr(self) -> str:
        """The group and the settings of its order."""
        tails = "fixed" if self.logits is None else "learned"
        now = f"{self.width} of {self.nodes} nodes" if self.width else "full" if self.free else "sampled"
        return f"'{self.name}', groups={self.steps.groups}, base={self.steps.base}, tails {tails}, width {now}"


def units(model: nn.Module) -> list[OrderingUnit]:
    """The ordering units of a model, each once."""
    return [module for module in model.modules() if isinstance(module, OrderingUnit)]
