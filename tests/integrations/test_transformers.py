"""The Trainer of transformers with the mixin ends where `fit` does, and everything around a step happens under it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import leanbayes as lb
from leanbayes.errors import ConfigError

from ..test_foreign_models import package

pytestmark = pytest.mark.extra
STEPS, BATCH = 6, 8
METHODS = {
    "plain": None,
    "mean-field": lb.MeanField(),
    "sparse": {nn.Linear: lb.SparseSubspace(density=0.3, interval=2)},
    "patch": {nn.LayerNorm: lb.Patch(2)},
}


@pytest.fixture(scope="module")
def transformers():
    package("accelerate")
    return package("transformers")


@pytest.fixture
def network(transformers):
    def make(method=None):
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
        if method is not None:
            lb.bayesianize_(model, method)
        return model

    return make


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(5, 60, (STEPS * BATCH, 12), generator=generator)
    mask = torch.ones_like(words)
    mask[::3, 7:] = 0
    return [{"input_ids": w, "attention_mask": m, "labels": w[0] % 3} for w, m in zip(words, mask, strict=True)]


@pytest.fixture
def make(transformers, data, tmp_path):
    """Makes a Trainer that reads the data in their order."""

    class BayesTrainer(lb.HFTrainerMixin, transformers.Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=self.args.per_device_train_batch_size)

    def trainer(model, *, size=BATCH, own_optimizer=False, kl_weight=1e-5, folder="run", options=(), **named):
        options = {
            "output_dir": tmp_path / folder, "per_device_train_batch_size": size, "num_train_epochs": 1,
            "use_cpu": True, "report_to": [],
            "save_strategy": "no", "max_grad_norm": 0.5, "lr_scheduler_type": "constant", "seed": 0,
            "disable_tqdm": True, "logging_steps": 2,
        } | dict(options)  # fmt: skip
        optimizer = None if own_optimizer else torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return BayesTrainer(
            model, transformers.TrainingArguments(**options), train_dataset=data, eval_dataset=data[:8],
            optimizers=(optimizer, None), kl_weight=kl_weight, **named,
        )  # fmt: skip

    return trainer


def fitted(model, data, *, epochs=1, **options):
    lb.fit(
        model, list(DataLoader(data, batch_size=BATCH)), num_data=len(data), epochs=epochs, kl_weight=1e-5, clip=0.5,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), progress=False, **options,
    )  # fmt: skip
    return model


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_it_ends_where_fit_does(name, network, make, data, distance):
    method = METHODS[name]
    with lb.using(mean_only=True):
        expected = fitted(network(method), data)
        trainer = make(network(method))
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        said = trainer.model(**{k: torch.stack([d[k] for d in data[:8]]) for k in data[0] if k != "labels"}).logits
        labels = torch.stack([d["labels"] for d in data[:8]])
    assert distance(expected, network(method)) > 1e-3, "training moved something"
    assert distance(trainer.model, expected) <= 1e-6
    assert lb.predict(trainer.model, [data[0]["input_ids"][None]], samples=2).task == "classification"
    assert loss == pytest.approx(nn.functional.cross_entropy(said, labels).item(), abs=1e-6)  # of evaluation: the nll
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert len(logged) == STEPS // 2
    assert all({"nll", "kl", "kl_weight"} <= row.keys() for row in logged)


def test_masks_are_updated_at_the_same_steps(network, make):
    class Watch(lb.Callback):
        def fit_end(self, state):
            self.updates = [u for c in trainer.following.hooks if c is not self for u in c.updates]

    model, watch = network(METHODS["sparse"]), Watch()
    before = {k: v.clone() for k, v in model.state_dict().items() if k.endswith("index")}
    trainer = make(model, method_callbacks=[watch])
    trainer.train()
    assert any(not torch.equal(model.state_dict()[k], v) for k, v in before.items())
    assert [step for step, _ in watch.updates] == [2, 4]
    assert all(moved > 0 for _, moved in watch.updates)


def test_patches_and_shared_parameters_take_turns(network, make, data, turns, distance):
    with lb.using(mean_only=True):
        again = lb.CoordinateDescent(every=2, unit="step")
        expected = fitted(network(METHODS["patch"]), data, callbacks=[again])
        trainer = make(network(METHODS["patch"]), method_callbacks=[turns])
        trainer.train()
    assert turns.taken == ["shared", "shared", "patch", "patch", "shared", "shared"]
    assert distance(trainer.model, expected) <= 1e-6


def test_accumulated_gradients_are_one_step(network, make, data, distance):
    method = METHODS["mean-field"]
    with lb.using(mean_only=True):
        expected = fitted(network(method), data)
        trainer = make(network(method), size=BATCH // 2, options={"gradient_accumulation_steps": 2})
        trainer.train()
    assert trainer.elbo.step == STEPS
    assert distance(trainer.model, expected) <= 1e-6


def test_a_checkpoint_is_continued_and_loaded(network, make, data, distance, tmp_path):
    method = METHODS["sparse"]
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": STEPS}
    with lb.using(mean_only=True):
        trainer = make(network(method), options=options)
        trainer.train()
        whole = trainer.model
        half = tmp_path / "run" / f"checkpoint-{STEPS}"
        trainer = make(network(method), options=options)
        trainer.train(resume_from_checkpoint=str(half))
    assert trainer.elbo.step == 2 * STEPS
    assert distance(trainer.model, whole) <= 1e-6
    loaded = lb.load(half / "bayes.safetensors", into=network())
    assert lb.predict(loaded, [data[0]["input_ids"][None]], samples=2).task == "classification"


def test_the_trainers_own_optimizer_moves_spreads_at_their_rate(network, make):
    trainer = make(network(lb.MeanField()), own_optimizer=True, kl_weight=None)
    trainer.train()
    groups = trainer.optimizer.param_groups
    assert [g["lr"] for g in groups if g.get("scales")] == [0.02]
    assert sum(len(g["params"]) for g in groups) == len(list(trainer.model.parameters()))


def test_what_cannot_be_trained_is_refused(network, make):
    with pytest.raises(ConfigError, match="num_data"):
        make(network(), num_data=0)
    with pytest.raises(ConfigError, match="callbacks"):
        make(network(), method_callbacks=[3])
