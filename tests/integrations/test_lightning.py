"""Lightning's Trainer ends where `fit` does, and everything around a step happens under it."""

import logging
import warnings

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError

from ..test_foreign_models import package

pytestmark = pytest.mark.extra
STEPS, BATCH = 8, 10


@pytest.fixture(scope="module")
def pl():
    for name in ("lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return package("lightning.pytorch")


def network(method):
    torch.manual_seed(0)
    model = lb.models.lenet5()
    if method is not None:
        lb.bayesianize_(model, method)
    return model


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS * BATCH, 1, 28, 28, generator=generator), torch.arange(STEPS * BATCH) % 10


def in_batches(data, size=BATCH):
    return list(zip(*(part.split(size) for part in data), strict=True))


@pytest.fixture
def train(pl, data, tmp_path):
    """Trains a network with Lightning; returns its module and the trainer."""

    class Module(pl.LightningModule):
        def __init__(self, network, task, optimizer):
            super().__init__()
            self.network, self.optimizer = network, optimizer
            self.elbo = lb.ELBO(task, num_data=len(data[0]), kl_weight=1e-5)

        def training_step(self, batch, index):
            x, y = batch
            return self.elbo(self.network, self.network(x), y).loss

        def validation_step(self, batch, index):
            self.network(batch[0])

        def configure_optimizers(self):
            return self.optimizer or torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    def run(
        network,
        *,
        epochs=1,
        size=BATCH,
        callbacks=(),
        task="classification",
        optimizer=None,
        resume=None,
        also=(),
        **options,
    ):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        options = quiet | {"enable_checkpointing": False, "default_root_dir": tmp_path, "max_epochs": epochs} | options
        trainer = pl.Trainer(callbacks=[lb.LightningCallback(callbacks=callbacks), *also], **options)
        module = Module(network, task, optimizer)
        batches = torch.utils.data.DataLoader(in_batches(data, size), batch_size=None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
            trainer.fit(module, batches, batches, ckpt_path=resume)
        return module, trainer

    return run


def fitted(method, data, *, epochs=1, **options):
    model = network(method)
    lb.fit(
        model, in_batches(data), num_data=len(data[0]), epochs=epochs, kl_weight=1e-5, progress=False,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), **options,
    )  # fmt: skip
    return model


METHODS = {
    "plain": None,
    "mean-field": lb.MeanField(),
    "sparse": lb.SparseSubspace(density=0.3, interval=2),
    "patch": {nn.Linear: lb.Patch(2)},
    "ensemble": lb.Ensemble(2),
}


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_it_ends_where_fit_does(name, train, data, distance):
    with lb.using(mean_only=name != "ensemble"):  # its only noise is which member answers, and training takes turns
        expected = fitted(METHODS[name], data)
        module, trainer = train(network(METHODS[name]))
    assert distance(expected, network(METHODS[name])) > 1e-3, "training moved something"
    assert distance(module.network, expected) <= 1e-6
    assert lb.predict(module.network, data[0][:2], samples=2).task == "classification"
    assert {"nll", "kl", "kl_weight"} <= trainer.callback_metrics.keys()


def test_masks_are_updated_at_the_same_steps(train, data):
    models = [network(METHODS["sparse"]) for _ in range(2)]
    before = {k: v.clone() for k, v in models[0].state_dict().items() if k.endswith("index")}
    module, trainer = train(models[0])
    assert any(not torch.equal(module.network.state_dict()[k], v) for k, v in before.items())
    masks = trainer.callbacks[0].following.hooks[0]
    assert [step for step, _ in masks.updates] == [2, 4]
    assert all(moved > 0 for _, moved in masks.updates)


def test_patches_and_shared_parameters_take_turns(train, data, turns, distance):
    module, _ = train(network(METHODS["patch"]), callbacks=[turns], gradient_clip_val=0.5)
    assert turns.taken == ["shared", "shared", "patch", "patch"] * 2
    with lb.using(mean_only=True):
        expected = fitted(METHODS["patch"], data, callbacks=[lb.CoordinateDescent(every=2, unit="step")], clip=0.5)
        module, _ = train(network(METHODS["patch"]), callbacks=[turns], gradient_clip_val=0.5)
    assert distance(module.network, expected) <= 1e-6


@pytest.mark.parametrize("name", ["mean-field", "patch", "sparse"])
def test_accumulated_gradients_are_one_step(name, train, data, distance):
    with lb.using(mean_only=True):
        module, trainer = train(network(METHODS[name]), size=BATCH // 2, accumulate_grad_batches=2)
        following = trainer.callbacks[0].following
        assert following.state.step == following.elbo.step == STEPS
        if name == "sparse":  # the last batch of a step says where weights grow
            assert [step for step, _ in following.hooks[0].updates] == [2, 4]
        else:
            assert distance(module.network, fitted(METHODS[name], data)) <= 1e-6


def test_a_run_that_is_continued_ends_where_the_whole_one_does(train, pl, distance, tmp_path):
    keep = pl.callbacks.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=STEPS, save_top_k=-1)
    with lb.using(mean_only=True):
        whole, _ = train(network(METHODS["sparse"]), epochs=2, also=[keep], enable_checkpointing=True)
        rest, trainer = train(network(METHODS["sparse"]), epochs=2, resume=tmp_path / f"step={STEPS}.ckpt")
    following = trainer.callbacks[0].following
    assert following.state.step == following.elbo.step == 2 * STEPS
    assert len(following.hooks[0].updates) > 2, "those from before are remembered"
    assert distance(rest.network, whole.network) <= 1e-6


def test_what_cannot_be_followed_is_refused(train, pl):
    model = network(None)
    with pytest.raises(ConfigError, match=r"add elbo\.parameters"):
        train(model, task=lb.Regression(noise="learned"), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"elbo: expected lb\.ELBO"):
        lb.LightningCallback(3)
    model = network(METHODS["sparse"])
    with pytest.raises(ZeroDivisionError):
        train(model, callbacks=[Failing()])
    assert not model._forward_pre_hooks


class Failing(lb.Callback):
    def after_step(self, state):
        raise ZeroDivisionError
