"""What sparse training methods share: a constant number of active weights, and an alternation that moves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...config import check_between, check_choice, check_flag, check_positive, check_whole
from ...errors import ConfigError, ConversionError
from ...method import Method
from . import allocation

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...posteriors.base import Posterior
    from ...posteriors.sparse import Sparse


@dataclass(frozen=True)
class SparseTraining(Method):
    """Base of `SparseSubspace` and `Rigl`; see there for what the fields mean."""

    density: float = 0.05
    allocation: Literal["uniform", "erdos-renyi"] = "uniform"
    interval: int = 100
    replacement: float = 0.3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    until: float = 0.75
    keep_returning: bool = True
    keep_weights: bool = True
    init_std: float | None = None

    def __post_init__(self) -> None:
        here = type(self).__name__
        check_positive(self, "density")
        if self.density > 1:
            raise ConfigError(
                f"{here}.density: expected the share of active weights, in (0, 1], received {self.density}"
            )
        check_choice(self, "allocation", allocation.ALLOCATIONS)
        check_choice(self, "schedule", ("cosine", "linear", "constant"))
        check_whole(self, "interval")
        check_between(self, "replacement", 0.0, 1.0)
        check_positive(self, "until")
        check_between(self, "until", 0.0, 1.0)
        check_flag(self, "keep_returning", "keep_weights")
        if self.init_std is not None:
            check_positive(self, "init_std")
            if self.keep_weights:
                raise ConfigError(
                    f"{here}.init_std: expected with keep_weights=False, received it with weights to keep; drop one"
                )

    def refuses(self, module: nn.Module) -> str | None:
        """Whatever is not a Linear or a convolution."""
        from torch import nn

        from ...layers.operations import refusal

        if (why := refusal(module)) is not None:
            return why
        if not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            return f"sparse weights are for Linear and convolutions, not {type(module).__name__}"
        return None

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every Linear and convolution but those that share their weight with something else (an Embedding, say)."""
        if self.refuses(module) is not None:
            return False
        holders = (m for m in model.modules() if any(p is module.weight for p in m._parameters.values()))
        return all(self.refuses(holder) is None for holder in holders)

    def prepare(self, modules: Mapping[str, nn.Module], memo: dict[int, Posterior]) -> None:
        """Allot the active weights to the layers; a tied weight is one."""
        first: dict[int, tuple[str, Any]] = {}
        for name, module in modules.items():
            first.setdefault(id(module.weight), (name, module.weight))
        names, weights = [name for name, _ in first.values()], [weight for _, weight in first.values()]
        if self.allocation == "uniform":
            counts = [allocation.uniform(w.shape, self.density) for w in weights]
        else:
            counts = allocation.erdos_renyi([tuple(w.shape) for w in weights], self.density)
        allocation.check(names, [w.numel() for w in weights], counts, self.density)
        shared: dict[Any, Any] = memo
        shared[self] = dict(zip(first, counts, strict=True))

    def count(self, weight: Tensor, memo: dict[int, Posterior]) -> int:
        """How many weights of a tensor are active, as `prepare` has said."""
        shared: dict[Any, Any] = memo
        if (found := shared.get(self, {}).get(id(weight))) is not None:
            return int(found)
        if self.allocation != "uniform":
            raise ConversionError(
                f"{type(self).__name__}: expected all layers at once to share {self.density} of their weights among "
                "them, received one alone (in an ensemble, say); use allocation='uniform'"
            )
        count = allocation.uniform(weight.shape, self.density)
        allocation.check([""], [weight.numel()], [count], self.density)
        return count

    def start(self, module: nn.Module, count: int) -> tuple[nn.Parameter, Tensor]:
        """Values and places to start from: the largest of the module's weights, or random ones afresh."""
        import torch
        from torch import nn

        from ...posteriors.sparse import largest
        from ..mean_field.config import fresh

        weight: Any = module.weight
        if self.keep_weights:
            return largest(weight, count)
        index = torch.randperm(weight.numel(), device=weight.device)[:count].sort().values
        if self.init_std is not None:
            values = torch.randn(count, dtype=weight.dtype, device=weight.device) * self.init_std
        else:
            # fewer weights feed an output: larger ones keep its variance (Evci et al., 2022)
            new: Any = fresh(module).weight
            values = new.detach().flatten()[index] * (weight.numel() / count) ** 0.5
        return nn.Parameter(values, weight.requires_grad), index

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The alternation, over the layers that this method has made."""
        from .alternation import Alternation

        layers = {name: m for name, m in model.named_modules() if m.__dict__.get("subspace") == self}
        return [Alternation(self, layers)] if layers else []

    def keep_scores(self, q: Sparse) -> Tensor:
        """What active weights are ranked by, (n,); the lowest are removed."""
        raise NotImplementedError

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """Where the parameters of new weights start; survivors: a mask (n,) of the slots that stay."""
        raise NotImplementedError
