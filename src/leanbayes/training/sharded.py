"""Training with parameters, gradients and optimiser state divided among processes (FSDP, torch's `fully_shard`)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from .processes import Parameters


class Shards(Parameters):
    """The parameters of one run, of which every process keeps a part between steps.

    The forward pass and the loss are one module of FSDP, so that layers and the KL see whole posteriors: they are
    gathered before the forward pass and dropped after the backward pass. Numbers that are no vector stay whole, and
    their gradients are averaged.
    """

    def shard(self, module: nn.Module, device: torch.device) -> None:
        """Divide the parameters of a module; those of the first process are everybody's."""
        for tensor in (*module.parameters(), *module.buffers()):
            distributed.broadcast(tensor.detach(), 0)
        mine = dict(module.named_parameters())
        scalars = {p for p in mine.values() if not p.ndim}
        mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
        self.module: Any = fully_shard(module, mesh=mesh, ignored_params=scalars)
        for p in scalars:
            p.register_post_accumulate_grad_hook(_average)
        self.original = {p: mine[name] for name, p in module.named_parameters() if p is not mine[name]}
        for whole in self.original.values():
            whole.data = whole.data.new_empty(0)  # the memory; the object is the user's, and comes back in the end

    def adopt(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._exchange({whole: part for part, whole in self.original.items()})

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        self.module.unshard()
        try:
            yield
        finally:
            self.module.reshard()

    def gathered(self, content: Any) -> Any:
        return pytree.tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, content)

    def divided(self, stored: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        present = model.state_dict()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        states = {
            index: {name: _like(value, parameters[index]) for name, value in state.items()}
            for index, state in stored["optimizer"]["state"].items()
        }
        return stored | {
            "model": {name: _like(value, present.get(name)) for name, value in stored["model"].items()},
            "optimizer": stored["optimizer"] | {"state": states},
        }

    @torch.no_grad()
    def end(self) -> None:
        self.module.reshard()
        for part, whole in self.original.items():
            whole.data = self.gathered(part.data)
        for module in self.module.modules():
            for name, p in module._parameters.items():
                if p in self.original:
                    module._parameters[name] = self.original[p]
        self._exchange(self.original)

    def _exchange(self, instead: dict[Any, Any]) -> None:
        """Give the optimiser other parameters in the place of its own, and what it remembers of them in their form."""
        for group in self.optimizer.param_groups:
            group["params"] = [instead.get(p, p) for p in group["params"]]
        for old, new in instead.items():
            if old in self.optimizer.state:
                state = self.gathered(self.optimizer.state.pop(old))
                self.optimizer.state[new] = {name: _like(value, new) for name, value in state.items()}


class Sharded(DDPStrategy):
    """Fabric's strategy for processes that keep a part of the parameters each."""

    def __init__(self, shards: Shards, start_method: Any = "popen") -> None:
        super().__init__(start_method=start_method)
        self.shards, self._backward_sync_control = shards, _NoSync()  # type: ignore[assignment]

    def setup_module(self, module: nn.Module) -> Any:
        """The module, its parameters divided."""
        self.shards.shard(module, self.root_device)
        return module

    @torch.no_grad()
    def clip_gradients_norm(
        self, module: Any, optimizer: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = True
    ) -> Tensor:
        """Clip the gradients by the norm of all processes' parts, and return it."""
        self.precision.unscale_gradients(optimizer)
        gradients = [p.grad for p in self.precision.main_params(optimizer) if p.grad is not None]
        norms = [self.shards.gathered(torch.linalg.vector_norm(g)) for g in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        if (size := float(norm)) > max_norm or not math.isfinite(size):
            for g in gradients:
                g.mul_(max_norm / (size + 1e-6))
        return norm


class _NoSync:
    """Adds up gradients in every process by itself, until the last batch of a step."""

    @contextlib.contextmanager
    def no_backward_sync(self, module: Any, enabled: bool) -> Iterator[None]:
        """A block whose gradients are not exchanged."""
        module.set_requires_gradient_sync(not enabled)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)


def _like(value: Any, other: Any) -> Any:
    """A tensor in the form of another of its shape: the part of this process, where the other is in parts."""
    if not isinstance(other, DTensor) or not isinstance(value, Tensor) or value.shape != other.shape:
        return value
    return distribute_tensor(value.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def _average(p: Tensor) -> None:
    """Average a gradient over processes; sums of averages are averages of sums, so it may be called every batch."""
    assert p.grad is not None
    distributed.all_reduce(p.grad)
    p.grad /= distributed.get_world_size()
