"""The ELBO, and what the methods of a model do around steps, in the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import batches
from ..artifacts import save
from ..errors import ConfigError, LeanBayesWarning
from ..optional import require
from ..training import callbacks as hooks, checkpoint
from ..training.arguments import default_kl_weight, make_optimizer
from ..training.elbo import ELBO
from ..training.follow import Following, started
from ..training.parameter_groups import OPTIONS, parameter_groups
from ..training.schedules import Schedule, schedule

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object  # a mixin: its user brings the class

MODEL, TRAINING = "bayes.safetensors", "bayes-training.ckpt"


class HFTrainerMixin(Trainer):
    """The `ELBO` as the loss of a Hugging Face Trainer: ``class BayesTrainer(lb.HFTrainerMixin, Trainer): ...``.

    The mixin comes first; the Trainer is used as ever, with a model that `bayesianize_` has converted. Mask updates,
    temperatures, the turns of an ensemble and callbacks of your own happen around its steps, with accumulated gradients
    once a step and before gradients are clipped. The optimiser that the Trainer makes gives the spreads of posteriors a
    learning rate of their own, as `fit` does. ``nll``, ``kl`` and ``kl_weight`` are logged beside the loss; the loss of
    an evaluation is the nll alone. A checkpoint holds the model as `leanbayes.save` writes it as well, in
    bayes.safetensors, and what a run needs to go on.

    task, kl_weight, scale_lr: see `fit`. num_data: the number of training data, if train_dataset has no length.
    method_callbacks: further callbacks of leanbayes, such as `CoordinateDescent`; ``callbacks`` are transformers' own.

    `pip install 'leanbayes[trainers]'`. See the guide on other libraries for a whole example.
    """

    def __init__(
        self,
        *arguments: Any,
        task: Any = "classification",
        num_data: int | None = None,
        kl_weight: float | Schedule | None = None,
        scale_lr: float | None = None,
        method_callbacks: Iterable[Any] = (),
        **named: Any,
    ) -> None:
        require("transformers", "trainers", "HFTrainerMixin")
        self.following: Following | None = None
        self.scale_lr, self.method_callbacks = scale_lr, hooks.check(method_callbacks)
        super().__init__(*arguments, **named)
        if self.args.n_gpu > 1:
            raise ConfigError(
                f"HFTrainerMixin: expected a process for each GPU, received {self.args.n_gpu} GPUs in one; start the "
                "program with torchrun, or set CUDA_VISIBLE_DEVICES=0"
            )
        if num_data is None and isinstance(self.train_dataset, Sized):
            num_data = len(self.train_dataset)
        self.elbo = ELBO(task, num_data, 1.0 if kl_weight is None else kl_weight).to(self.args.device)
        if kl_weight is None:
            self.elbo.kl_weight = schedule(default_kl_weight(self.model, self.elbo.num_data))
        # The loss is a mean over the batch, which the Trainer divides by the number of accumulated ones.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = False

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch; the nll alone outside of training."""
        given, targets = batches.split(inputs)
        outputs = batches.call(model, given)
        terms = self.elbo(self.accelerator.unwrap_model(model), outputs, targets)
        loss = terms.loss if model.training and torch.is_grad_enabled() else terms.nll
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, *arguments: Any, **named: Any) -> Any:
        """The Trainer's own, with groups for the scales of posteriors and a learned noise level."""
        ours = self.optimizer is None
        made = super().create_optimizer(*arguments, **named)
        if ours:
            groups = [g for g in parameter_groups(self.model, scale_lr=self.scale_lr) if g.get("scales")]
            scales = {id(p) for group in groups for p in group["params"]}
            for group in made.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in scales]
            known = {name for name, value in OPTIONS.items() if type(made.defaults.get(name)) is type(value)}
            for group in groups:  # other optimisers mean other things by betas and eps
                made.add_param_group({k: v for k, v in group.items() if k not in OPTIONS or k in known})
        return make_optimizer(made, self.model, self.elbo)

    def training_step(self, model: Any, *arguments: Any, **named: Any) -> Any:
        """A batch: forward and backward pass, with the callbacks before and after."""
        following = self.following = self.following or self._start()
        following.begin()
        loss = super().training_step(model, *arguments, **named)
        if self.accelerator.sync_gradients:
            scaler = self.accelerator.scaler
            following.state.scale = 1.0 if scaler is None else float(scaler.get_scale())
            following.gradients_ready()
        return loss

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train as the Trainer does; returns what it returns."""
        self.following = None
        try:
            result = super().train(*arguments, **named)
            if self.following is not None:
                self.following.stop()
            return result
        finally:
            if self.following is not None:
                self.following.remove()  # training has failed; after stop() there is nothing left to remove
                self.following = None

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Log numbers, those of a training step with the terms of its loss."""
        if "loss" in logs and self.following is not None and (terms := self.following.terms) is not None:
            logs |= {"nll": float(terms.nll), "kl": float(terms.kl), "kl_weight": terms.kl_weight}
        super().log(logs, *arguments, **named)

    def save_model(self, output_dir: str | None = None, *arguments: Any, **named: Any) -> None:
        """Write the Trainer's files and bayes.safetensors into a folder."""
        folder = Path(output_dir or self.args.output_dir)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "save_pretrained writes Bayesian layers", LeanBayesWarning)
            super().save_model(output_dir, *arguments, **named)
        if self.args.should_save:
            save(self.accelerator.unwrap_model(self.model), folder / MODEL, task=self.elbo.likelihood)
            if self.following is not None:
                state = {"following": self.following.state_dict(), "elbo": dict(self.elbo.state_dict())}
                checkpoint.write(folder / TRAINING, state)

    def _start(self) -> Following:
        optimizer = self.optimizer
        while not isinstance(optimizer, torch.optim.Optimizer) or type(optimizer).__module__.startswith("accelerate"):
            optimizer = optimizer.optimizer  # accelerate's wrapper is an Optimizer by name alone
        done = self.state.global_step
        following = started(
            self.model, optimizer, self.elbo, total_steps=self.state.max_steps, callbacks=self.method_callbacks
        )
        if done:
            stored = checkpoint.read(Path(self.args.output_dir, f"checkpoint-{done}", TRAINING))
            self.elbo.load_state_dict(stored["elbo"])
            following.load_state_dict(stored["following"])
        return following
