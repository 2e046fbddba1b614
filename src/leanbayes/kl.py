"""KL(q || p), elementwise, by pair of posterior and prior; and its sum over a model.

Pairs announce their forms with `register_kl`; nothing here scales a KL by the data or averages it: the ELBO does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import checks
from .checks import module as checked_module, whole_number
from .errors import ConfigError
from .kl_compiled import FORMS, Compiled, compiled, kernels_serve, row_sums
from .posteriors import FactorisedGaussian, MultiplicativeGaussian, Posterior, ZeroMeanGaussian
from .posteriors.base import above_zero
from .posteriors.log_uniform import cui, exact, kingma, molchanov, monte_carlo
from .posteriors.student_t import expected_log1p_square
from .priors import EmpiricalNormal, LogUniform, Normal, Prior, StudentT
from .sampling import with_method

Kind = Literal["exact", "approximation", "up to a constant", "monte carlo"]
Rule = Callable[[Any, Any, int], Tensor]  # (q, p, samples) -> elementwise KL

_RULES: dict[tuple[type, type], dict[str, tuple[Kind, Rule]]] = {}
_FORMS: dict[Rule, str] = {}
"""What the kernels call a rule that they have too; see `leanbayes.kl_compiled`."""


def kl(q: Posterior, p: Prior, approximation: str | None = None, samples: int | None = None) -> Tensor:
    """KL(q || p) = E_q[log q(w) - log p(w)], elementwise, of the shape of q; of a sparse q, that of its active weights.

    approximation: a name where the pair has several forms ("molchanov", "kingma", "cui", "exact", "monte carlo" against
    LogUniform; "monte carlo", "exact" against StudentT); None takes the pair's first. See `kl_kind`.
    samples: how many draws a Monte-Carlo estimate takes, 1 by default; closed forms ignore it.

    >>> from leanbayes.posteriors import Gaussian
    >>> q = Gaussian.from_tensor(torch.tensor([1.0, 2.0]), std=1.0)
    >>> kl(q, Normal())
    tensor([0.5000, 2.0000], grad_fn=...)
    """
    q = q.active()
    _, rule = _find(type(q), p, approximation)
    count = 1 if samples is None else whole_number("samples", samples)
    return q.masked(rule(q.whole(), p, count))  # a pruned weight is no random variable and costs nothing


def kl_kind(q: Posterior, p: Prior, approximation: str | None = None) -> Kind:
    """The kind of `kl` for the pair: "exact", "approximation", "up to a constant" or "monte carlo".

    >>> from leanbayes.posteriors import Gaussian
    >>> q = Gaussian.from_tensor(torch.zeros(2))
    >>> kl_kind(q, Normal()), kl_kind(q, LogUniform()), kl_kind(q, LogUniform(), "exact")
    ('exact', 'approximation', 'up to a constant')
    """
    return _find(type(q.active()), p, approximation)[0]


@dataclass(frozen=True)
class Term:
    """The KL of a posterior as a term of `kl_sum`, which computes terms of one kind together.

    q, prior, approximation: as for `kl`. weigh: makes a scalar of the sums over ``rows`` equal parts of the elements,
    cut along the first dimension; None for the sum over all of them.
    """

    q: Posterior
    prior: Prior
    approximation: str | None
    rows: int = 1
    weigh: Callable[[Tensor], Tensor] | None = None

    def __call__(self) -> Tensor:
        """The term by itself, in at least single precision."""
        terms = kl(self.q, self.prior, self.approximation)
        wide = torch.promote_types(terms.dtype, torch.float32)
        return (
            terms.sum(dtype=wide) if self.weigh is None else self.weigh(terms.reshape(self.rows, -1).sum(1, dtype=wide))
        )


def kl_sum(model: nn.Module) -> Tensor:
    """The KL of a whole model: every posterior once, however many layers share it, with the weight that its layer has.

    A layer takes part by a method ``kl_terms()`` yielding (posterior, function that gives its scalar term); a `Term` is
    such a function, and those of one kind are computed together.

    >>> kl_sum(nn.Linear(2, 2))
    tensor(0.)
    """
    terms: dict[int, Callable[[], Tensor]] = {}
    checked_module("model", model)
    for layer in with_method(model, "kl_terms"):
        for posterior, term in layer.kl_terms():
            if id(posterior) not in terms:
                terms[id(posterior)] = term
                layer.kl_counted = True
    total = torch.zeros((), device=next((p.device for p in model.parameters()), None))
    for value in _values(terms.values()):
        total = total + value.to(total.device)  # float32 and up: a half-precision term is promoted
    return total


def _values(terms: Iterable[Callable[[], Tensor]]) -> Iterator[Tensor]:
    """The values of the terms; those that the kernels serve are computed by one function, and in one sum."""
    plain: list[tuple[Term, Compiled]] = []
    weighed: list[tuple[Term, Compiled]] = []
    serves = kernels_serve()
    for term in terms:
        made = _compiled(term) if serves and isinstance(term, Term) else None
        if made is None:
            yield term()
        else:
            assert isinstance(term, Term)
            (plain if term.weigh is None else weighed).append((term, made))
    if plain or weighed:
        first, *rest = row_sums([made for _, made in (*plain, *weighed)], len(plain))
        yield first
        for (term, _), of_term in zip(weighed, rest, strict=True):
            assert term.weigh is not None
            yield term.weigh(of_term)


def _compiled(term: Term) -> Compiled | None:
    """How the kernels compute a term, or None where they do not."""
    q, prior = term.q, term.prior
    kind = vars(type(q)).get("elements")  # of this very class: a subclass may have another law
    if kind is None or q.keep is not None or type(prior) not in (Normal, EmpiricalNormal, LogUniform):
        return None
    _, rule = _find(kind, prior, term.approximation)
    return None if (form := _FORMS.get(rule)) is None else compiled(q, kind, form, rule, prior, term.rows)


def random_weights(model: nn.Module) -> int:
    """The number of values of a model that have a term in `kl_sum`.

    >>> random_weights(nn.Linear(2, 2))
    0
    """

    def size(q: Any) -> int:
        if isinstance(q, Posterior):
            return q.active().like.numel()
        return sum(p.numel() for p in q.parameters()) if isinstance(q, nn.Module) else q.numel()

    found = {id(q): q for layer in with_method(model, "kl_terms") for q, _ in layer.kl_terms()}
    return sum(map(size, found.values()))


def unscaled_sum(model: nn.Module) -> Tensor | None:
    """The sum of terms that the loss does not divide by the number of data; None if there are none.

    A latent that is drawn for every batch (the widths of a nested network) has a KL per batch. A module takes part by a
    method ``unscaled_terms()`` yielding weighted scalars.

    >>> unscaled_sum(nn.Linear(2, 2)) is None
    True
    """
    total: Tensor | None = None
    for layer in with_method(model, "unscaled_terms"):
        for term in layer.unscaled_terms():
            total = term if total is None else total + term.to(total.device)
    return total


def register_kl(
    q: type, p: type, *, kind: Kind, name: str | None = None, form: str | None = None
) -> Callable[[Rule], Rule]:
    """Make ``rule(q, p, samples)`` the KL of two classes and their subclasses; the first rule of a pair is its default.

    A rule for the prior's own class has precedence over one for a base class, then the same for q.
    form: the name of the rule in the kernels, if they have it too.
    """

    def record(rule: Rule) -> Rule:
        _RULES.setdefault((q, p), {})[name or kind] = (kind, rule)
        if form is not None:
            _FORMS[rule] = form
        return rule

    return record


def _find(q: type, p: Prior, approximation: str | None) -> tuple[Kind, Rule]:
    pairs = ((of_q, of_p) for of_p in type(p).__mro__ for of_q in q.__mro__)
    forms = next((_RULES[pair] for pair in pairs if pair in _RULES), None)
    here = f"({q.__name__}, {type(p).__name__})"
    if forms is None:
        known = ", ".join(f"({a.__name__}, {b.__name__})" for a, b in _RULES)
        raise ConfigError(f"kl: expected a known pair of posterior and prior, received {here}; known: {known}")
    if approximation is None:
        return next(iter(forms.values()))
    if approximation not in forms:
        known = ", ".join(map(repr, forms))
        raise ConfigError(
            f"kl of {here}: expected an approximation among {known}, received {checks.short(approximation)}"
        )
    return forms[approximation]


@register_kl(FactorisedGaussian, Normal, kind="exact", form="normal")
def _against_normal(q: FactorisedGaussian, p: Normal, _: int) -> Tensor:
    """KL = (r^2 - 1) / 2 - log r + z^2 / 2 with r = std / p.std and z = (mean - p.mean) / p.std."""
    ratio, z = q.std, q.mean
    if p.mean != 0:
        z = z - p.mean
    if p.std != 1:  # a small network feels every operation
        ratio, z = ratio / p.std, z / p.std
    ratio = above_zero(ratio)
    return 0.5 * (ratio.square() - 1 + z.square()) - ratio.log()


@register_kl(FactorisedGaussian, EmpiricalNormal, kind="exact", form="normal")
def _against_itself(q: FactorisedGaussian, p: EmpiricalNormal, _: int) -> Tensor:
    """KL = (r^2 - 1) / 2 - log r with r = std / p.std(mean): the centre is the posterior's own."""
    ratio = above_zero(q.std / p.std(q.mean))
    return 0.5 * (ratio.square() - 1) - ratio.log()


@register_kl(FactorisedGaussian, Prior, kind="monte carlo")
def _with_exact_entropy(q: FactorisedGaussian, p: Prior, samples: int) -> Tensor:
    """KL = -H(q) - E_q[log p(w)]: the entropy is exact, the rest is sampled, every draw with its mirror image.

    The mirror image cancels what is odd in the noise, which for a narrow q is nearly all of the variance.
    """
    total = torch.zeros_like(q.like)
    for _ in range(samples):
        noise = q.noise()
        total = total + p.log_prob(q.sample(noise)) + p.log_prob(q.sample(-noise))
    return -q.entropy() - total / (2 * samples)


register_kl(FactorisedGaussian, StudentT, kind="monte carlo")(_with_exact_entropy)  # first, hence the default


@register_kl(FactorisedGaussian, StudentT, kind="exact")
def _against_student(q: FactorisedGaussian, p: StudentT, _: int) -> Tensor:
    """KL = -H(q) - log p(loc) + (df + 1) / 2 E log(1 + z^2 / df), by quadrature (variance networks, eq. 25 corrected).

    The cost is some seventy transcendental functions a weight, where the default has two.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    std = above_zero(q.std.to(wide))
    unit = math.sqrt(0.5 * p.df) * p.scale
    spread = std.clamp_min(1e-9 * unit)  # below that q is a point to p; derivatives would be 0 * infinity
    if isinstance(q, MultiplicativeGaussian) and p.loc == 0:
        x = torch.exp(-0.5 * q.log_alpha.to(wide)) / math.sqrt(2)  # may be a single number for a whole layer
    else:
        x = (q.mean.to(wide) - p.loc) / (math.sqrt(2) * spread)
    u = unit / spread
    entropy = std.log() + 0.5 * math.log(2 * math.pi * math.e)
    return (0.5 * (p.df + 1) * expected_log1p_square(x, u) - entropy - p.log_peak).to(q.dtype)


@register_kl(Posterior, Prior, kind="monte carlo")
def _plain_monte_carlo(q: Posterior, p: Prior, samples: int) -> Tensor:
    """The mean of log q(w) - log p(w) over reparameterised draws."""
    total = torch.zeros_like(q.like)
    for _ in range(samples):
        w = q.sample(q.noise())
        total = total + q.log_prob(w) - p.log_prob(w)
    return total / samples


def _log_alpha(q: FactorisedGaussian) -> Tensor:
    """log of std^2 / mean^2, of a shape that broadcasts to that of q.

    The floor under |mean| / std is far below where any of the curves still changes; under it the gradient is 0, as in
    the limit, instead of 0 * infinity.
    """
    if isinstance(q, MultiplicativeGaussian):
        return q.log_alpha
    return -2 * (q.mean.abs() / q.std).clamp_min(1e-18).log()


def _register_log_uniform(name: str, kind: Kind, curve: Callable[[Tensor], Tensor]) -> None:
    @register_kl(FactorisedGaussian, LogUniform, kind=kind, name=name, form=name if name in FORMS else None)
    def _through_alpha(q: FactorisedGaussian, p: LogUniform, _: int) -> Tensor:
        return curve(_log_alpha(q)).expand(q.shape)

    # A zero-mean Gaussian has alpha = infinity whatever its std: 1/|w| has no scale to compare a std with (variance
    # networks, appendix C). So the KL is a constant under every name, and 0 in the convention of the curves.
    @register_kl(ZeroMeanGaussian, LogUniform, kind="up to a constant", name=name)
    def _constant(q: ZeroMeanGaussian, p: LogUniform, _: int) -> Tensor:
        return torch.zeros_like(q.like, requires_grad=False)


_register_log_uniform("molchanov", "approximation", molchanov)  # first, hence the default
_register_log_uniform("kingma", "approximation", kingma)
_register_log_uniform("cui", "approximation", cui)
_register_log_uniform("exact", "up to a constant", exact)


@register_kl(FactorisedGaussian, LogUniform, kind="monte carlo")
def _log_uniform_sampled(q: FactorisedGaussian, p: LogUniform, samples: int) -> Tensor:
    """Equation 9 of variance networks, every draw with its mirror image."""
    if isinstance(q, MultiplicativeGaussian):
        snr = torch.exp(-0.5 * q.log_alpha)
    else:
        snr = q.mean / above_zero(q.std)
    total = torch.zeros_like(q.like)
    for _ in range(samples):
        noise = q.noise()
        total = total + monte_carlo(snr, noise) + monte_carlo(snr, -noise)
    return total / (2 * samples)


@register_kl(ZeroMeanGaussian, LogUniform, kind="up to a constant", name="monte carlo")
def _nothing_to_sample(q: ZeroMeanGaussian, p: LogUniform, _: int) -> Tensor:
    return torch.zeros_like(q.like, requires_grad=False)
