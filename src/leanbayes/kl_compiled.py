"""The KL of Gaussian weights by the compiled kernels: a pass over memory for all layers, and one for the gradient.

In torch a formula is a dozen operations for every tensor, which a small network waits for and which take a large one
through all of its memory a dozen times. `leanbayes.kl` has the formulas, and says which of them the kernels have too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .kernels import library
from .posteriors import Gaussian, MultiplicativeGaussian, Posterior, ZeroMeanGaussian
from .priors import EmpiricalNormal, Normal

FORMS = ("normal", "molchanov", "kingma", "cui")
"""As enumerated in kernels/native/kernels.c."""


@dataclass(frozen=True)
class Compiled:
    """A KL as the kernels compute it.

    kind: of posterior, with the parameters ``names``; parameters: their values. rule, prior: what torch would compute.
    mean, scale: which of the parameters are the means, if the formula reads them, and the scales.
    rows: how many sums there are, over equal parts of the elements along the first dimension.
    """

    kind: type[Posterior]
    names: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    rule: Callable[[Any, Any, int], Tensor]
    prior: Any
    form: int
    mean: int | None
    scale: int
    rows: int

    def law(self, width: float) -> tuple[int, int, float, float, int]:
        """The first arguments of the kernels. width: the standard deviation of a normal prior."""
        centre = float(self.prior.mean) if isinstance(self.prior, Normal) else 0.0
        return self.form, int(self.kind is MultiplicativeGaussian), centre, width, self.rows

    def in_torch(self, parameters: Sequence[Tensor], width: float) -> Tensor:
        """The sums of the rows by torch's operations, of other values of the parameters."""
        q = self.kind.__new__(self.kind)
        Posterior.__init__(q)
        q._parameters = dict(zip(self.names, parameters, strict=True))  # type: ignore[assignment, arg-type]
        prior = _Settled(width) if isinstance(self.prior, EmpiricalNormal) else self.prior
        return self.rule(q, prior, 1).reshape(self.rows, -1).sum(1)


class _Settled(NamedTuple):
    """An `EmpiricalNormal` whose width has been found."""

    width: float

    def std(self, mean: Tensor) -> float:
        return self.width


def kernels_serve() -> bool:
    """Whether there are kernels, and no mode that traces single operations is on."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or library.library() is None
    )


def compiled(
    q: Posterior, kind: type[Posterior], form: str, rule: Callable[[Any, Any, int], Tensor], prior: Any, rows: int
) -> Compiled | None:
    """How the kernels compute a KL, or None for other distributions, dtypes, devices and layouts."""
    names, parameters = tuple(q._parameters), tuple(q._parameters.values())
    if kind not in (Gaussian, ZeroMeanGaussian, MultiplicativeGaussian) or not _alike(parameters):
        return None
    if form == "normal":
        if kind is MultiplicativeGaussian or (isinstance(prior, EmpiricalNormal) and not kind.has_mean):
            return None
        mean = 0 if kind is Gaussian and isinstance(prior, Normal) else None
    else:
        mean = 0 if kind is Gaussian else None
    scale = names.index("log_alpha" if kind is MultiplicativeGaussian else "rho")
    return Compiled(kind, names, parameters, rule, prior, FORMS.index(form), mean, scale, rows)  # type: ignore[arg-type]


def row_sums(laws: list[Compiled], plain: int) -> list[Tensor]:
    """The sum over the first ``plain`` of them, and the sums of the rows of each of the others."""
    sums: Tensor = _Sums.apply(laws, _widths(laws), *(p for law in laws for p in law.parameters))
    rows = [law.rows for law in laws]
    first, *rest = sums.split([sum(rows[:plain]), *rows[plain:]])
    return [first.sum(), *rest]


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, laws: list[Compiled], widths: list[float], *given: Tensor) -> Tensor:
        ctx.laws, ctx.widths = laws, widths
        ctx.save_for_backward(*given)
        sums = torch.empty(sum(law.rows for law in laws))
        for law, width, values, out in _each(laws, widths, given, sums):
            mean = None if law.mean is None else _line(values[law.mean])
            library.call("leanbayes_divergence", *law.law(width), mean, _line(values[law.scale]), out)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        given, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]
        found: list[Tensor | None] = []
        if torch.is_grad_enabled():  # a graph of the gradient is wanted, which the kernels do not make
            sums = torch.cat([law.in_torch(v, width) for law, width, v, _ in _each(ctx.laws, ctx.widths, given, grad)])
            leaves = [t for t, want in zip(given, wanted, strict=True) if want]
            slopes = iter(torch.autograd.grad(sums, leaves, grad, create_graph=True, allow_unused=True))
            return None, None, *(next(slopes) if want else None for want in wanted)
        grad, wants = grad.contiguous(), iter(wanted)
        for law, width, values, upstream in _each(ctx.laws, ctx.widths, given, grad):
            reads = [want and k in (law.mean, law.scale) for k, want in zip(range(len(values)), wants, strict=False)]
            made = [torch.empty_like(v) if read else None for v, read in zip(values, reads, strict=True)]
            lines = [None if k is None else _line(values[k]) for k in (law.mean, law.scale)]
            slots = [None if k is None or (out := made[k]) is None else _line(out) for k in (law.mean, law.scale)]
            if any(reads):
                library.call("leanbayes_divergence_gradients", *law.law(width), *lines, upstream, *slots)
            found += made
        return None, None, *found


def _each(laws: list[Compiled], widths: list[float], given: Sequence[Tensor], by_row: Tensor) -> Any:
    """Of each law its width, its parameters and its rows."""
    at = 0
    for law, width, rows in zip(laws, widths, by_row.split([law.rows for law in laws]), strict=True):
        yield law, width, given[at : at + len(law.names)], rows
        at += len(law.names)


def _widths(laws: list[Compiled]) -> list[float]:
    """The standard deviations of normal priors; those of empirical ones, of all tensors at once, from the means."""
    found = [law.prior.std if isinstance(law.prior, Normal) else 1.0 for law in laws]
    empirical: dict[EmpiricalNormal, list[int]] = {}
    for i, law in enumerate(laws):
        if isinstance(law.prior, EmpiricalNormal):
            empirical.setdefault(law.prior, []).append(i)
    for prior, places in empirical.items():
        for i, width in zip(places, prior.stds([laws[i].parameters[0] for i in places]).tolist(), strict=True):
            found[i] = width
    return found


def _alike(parameters: Sequence[Tensor | None]) -> bool:
    """Whether the kernels can read these tensors, and pair their elements in the order that they have in memory."""
    first = parameters[0]
    return first is not None and all(
        p is not None
        and type(p) in (Tensor, nn.Parameter)
        and p.dtype == torch.float32
        and p.device.type == "cpu"
        and p.layout == torch.strided
        and not p.is_neg()
        and p.shape == first.shape
        and p.stride() == first.stride()
        and (p.is_contiguous() or (p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last)))
        for p in parameters
    )


def _line(t: Tensor) -> Tensor:
    """All elements in the order that they have in memory, without history; the first dimension stays outermost."""
    return t.detach().as_strided((t.numel(),), (1,))
