"""A callback for Lightning's Trainer: what the methods of a model do around training steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from ..errors import ConfigError
from ..optional import require
from ..training import callbacks as hooks
from ..training.elbo import ELBO
from ..training.follow import Following, started

# Lightning is published under two names, and the trainer of one refuses the callbacks of the other.
_PACKAGE = (
    "pytorch_lightning"
    if {"pytorch_lightning", "lightning.pytorch"} & {*sys.modules} == {"pytorch_lightning"}
    else "lightning.pytorch"
)
try:
    if _PACKAGE == "pytorch_lightning":
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError:
    Callback = object


class LightningCallback(Callback):
    """`follow` for Lightning: give it to ``Trainer(callbacks=[lb.LightningCallback()])``.

    Mask updates, temperatures, the turns of an ensemble and callbacks of your own then happen around the steps of the
    trainer, with accumulated gradients once a step, and before the gradients are clipped. The training_step of your
    LightningModule returns ``self.elbo(self.network, self.network(x), y).loss``, with an `ELBO` as attribute. The terms
    of the loss are logged as ``nll``, ``kl`` and ``kl_weight``. Checkpoints of Lightning hold what the callbacks need
    to go on. Afterwards the network remembers what it was trained for, as after `fit`; call `recalibrate_` if it has
    BatchNorm.

    elbo: the one that training_step uses; needed where the module has none, or several, among its attributes.
    callbacks: further ones, such as `CoordinateDescent`. log: whether the terms of the loss are logged.

    `pip install 'leanbayes[trainers]'`. See the guide on other libraries for a whole example.
    """

    def __init__(self, elbo: ELBO | None = None, *, callbacks: Iterable[Any] = (), log: bool = True) -> None:
        require(_PACKAGE, "trainers", "LightningCallback")
        super().__init__()
        if elbo is not None and not isinstance(elbo, ELBO):
            raise ConfigError(f"elbo: expected lb.ELBO(...) or None, received {type(elbo).__name__}")
        self.elbo, self.own, self.terms_are_logged = elbo, hooks.check(callbacks), log
        self.following: Following | None = None
        self.stored: dict[str, Any] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise ConfigError(
                f"configure_optimizers: expected one optimizer, received {len(trainer.optimizers)}; steps of several "
                "cannot be told apart"
            )
        elbo, optimizer = self.elbo or _only_elbo(pl_module), trainer.optimizers[0]
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(p.requires_grad and id(p) not in known for p in elbo.parameters()):
            raise ConfigError(
                "configure_optimizers: expected an optimizer over the learned noise level as well; add "
                "elbo.parameters() to its parameters"
            )
        steps = trainer.estimated_stepping_batches
        total = int(steps) if math.isfinite(steps) and steps > 0 else None
        self.following = started(pl_module, optimizer, elbo, total_steps=total, callbacks=self.own)
        if self.stored is not None:
            self.following.load_state_dict(self.stored)
            self.stored = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert self.following is not None
        self.following.state.epoch = trainer.current_epoch
        self.following.begin()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self.following is not None
        self.following.gradients_ready()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.following is not None
        if self.terms_are_logged and (terms := self.following.terms) is not None:
            pl_module.log_dict({"nll": terms.nll, "kl": terms.kl, "kl_weight": float(terms.kl_weight)})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.following is not None
        self.following.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.following is not None:
            self.following.remove()

    def state_dict(self) -> dict[str, Any]:
        """What the callbacks need to go on; Lightning keeps it in its checkpoints."""
        return {} if self.following is None else self.following.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Taken up when training starts."""
        self.stored = state_dict or None


def _only_elbo(module: Any) -> ELBO:
    found = [part for part in module.modules() if isinstance(part, ELBO)]
    if len(found) != 1:
        raise ConfigError(
            f"{type(module).__name__}: expected one lb.ELBO among its attributes, received {len(found)}; have "
            "training_step return self.elbo(self.network, self.network(x), y).loss, or pass LightningCallback(elbo)"
        )
    return found[0]
