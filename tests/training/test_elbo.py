import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from leanbayes.convert.apply import bayesianize_
from leanbayes.errors import ConfigError, DataError, LeanBayesWarning
from leanbayes.likelihoods import Regression
from leanbayes.methods import MeanField
from leanbayes.priors import Normal
from leanbayes.sampling import using
from leanbayes.training.callbacks import State, callbacks, notify
from leanbayes.training.data import count
from leanbayes.training.elbo import ELBO
from leanbayes.training.schedules import warmup


def bayesian_line(mean: float, std: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.constant_(model[0].weight, mean)
    bayesianize_(model, MeanField(prior=Normal(std=2.0), std=std))
    return model


def test_units_by_hand():
    """One weight N(0.5, 0.1^2), prior N(0, 2^2), at the mean: every term can be written down."""
    model = bayesian_line(0.5, 0.1)
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0])
    elbo = ELBO(Regression(std=3.0), num_data=50, kl_weight=0.25)
    with using(mean_only=True):
        terms = elbo(model, model(x), y)
    kl = math.log(2 / 0.1) + (0.1**2 + 0.5**2) / (2 * 2**2) - 0.5
    nll = math.log(3 * math.sqrt(2 * math.pi)) + (0.5**2 + 0.0**2) / (2 * 3**2) / 2
    assert terms.kl.item() == pytest.approx(kl, rel=1e-5)
    assert terms.nll.item() == pytest.approx(nll, rel=1e-5)
    assert terms.kl_weight == 0.25
    assert terms.loss.item() == pytest.approx(nll + 0.25 * kl / 50, rel=1e-5)


def test_batch_size_does_not_change_the_scale():
    model = bayesian_line(0.5, 0.1)
    x, y, elbo = torch.ones(6, 1), torch.ones(6), ELBO("regression", num_data=6)
    with using(mean_only=True):
        whole, part = elbo(model, model(x), y), elbo(model, model(x[:2]), y[:2])
    assert whole.loss.item() == pytest.approx(part.loss.item(), rel=1e-6)


def test_schedule_advances_in_training_only_and_is_saved():
    model, x, y = nn.Linear(1, 2), torch.zeros(3, 1), torch.zeros(3).long()
    elbo = ELBO("classification", 3, kl_weight=warmup(0, 1, steps=4))
    weights = [elbo(model, model(x), y).kl_weight for _ in range(3)]
    with torch.no_grad():
        elbo(model, model(x), y)
    elbo(model.eval(), model(x), y)
    model.train()
    again = ELBO("classification", 3, kl_weight=warmup(0, 1, steps=4))
    again.load_state_dict(elbo.state_dict())
    assert weights == [0, 0.25, 0.5]
    assert again(model, model(x), y).kl_weight == 0.75


def test_num_data():
    data = TensorDataset(torch.zeros(7, 1))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    assert ELBO("regression", DataLoader(data, batch_size=2)).num_data == 7
    assert ELBO("regression", data).num_data == 7
    assert count(DataLoader(data, sampler=torch.utils.data.SubsetRandomSampler([1, 2]))) == 2
    for wrong in (None, 0, -1, 2.5, True, "7", DataLoader(Stream()), object()):
        with pytest.raises(ConfigError, match="num_data"):
            ELBO("regression", wrong)
    with pytest.raises(DataError, match="empty"):
        ELBO("regression", TensorDataset(torch.zeros(0, 1)))


def test_outputs_of_all_kinds():
    model, logits, y = nn.Linear(1, 2), torch.zeros(3, 2), torch.zeros(3).long()
    elbo = ELBO("classification", 3)
    for outputs in (logits, (logits, None), {"logits": logits}, type("Out", (), {"logits": logits})()):
        assert elbo(model, outputs, y).nll.item() == pytest.approx(math.log(2))
    with pytest.raises(DataError, match="return a tensor"):
        elbo(model, "logits", y)


def test_learned_noise_finds_the_noise():
    y = 0.3 * torch.randn(2000, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    elbo = ELBO(Regression("learned", std=1.0), num_data=2000)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        elbo(model, model(torch.zeros(2000, 1)), y).loss.backward()
        optimizer.step()
    assert elbo.likelihood.std == pytest.approx(y.square().mean().sqrt().item(), rel=0.01)


def test_a_loop_of_your_own_needs_three_lines():
    torch.manual_seed(0)
    x = torch.randn(64, 2)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    bayesianize_(model, MeanField())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    elbo = ELBO("classification", num_data=64)  # one
    hooks, state = callbacks(model), State(model, optimizer)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        terms = elbo(model, model(x), y)  # two
        terms.loss.backward()
        optimizer.step()
        notify(hooks, "after_step", state)  # three: for methods that need it
        losses.append(terms.nll.item())
    assert losses[-1] < 0.5 * losses[0]


def test_autocast_does_not_reach_the_loss():
    model, x, y = nn.Linear(4, 2), torch.randn(3, 4), torch.zeros(3).long()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
        terms = ELBO("classification", 3)(model, outputs, y)
    assert outputs.dtype == torch.bfloat16
    assert terms.loss.dtype == torch.float32


@pytest.mark.parametrize(
    ("columns", "last", "said"),
    [
        (3, nn.Softmax(1), "leave out the Softmax"),
        (1, nn.Sigmoid(), "leave out the Sigmoid"),
        (3, nn.LogSoftmax(1), None),
        (2, nn.ReLU(), None),
        (1, nn.Softplus(), None),
    ],
)
def test_probabilities_in_place_of_logits_are_said_at_the_first_step(columns, last, said):
    torch.manual_seed(0)
    model, y = nn.Sequential(nn.Linear(4, columns), last), torch.zeros(8, dtype=torch.long)
    elbo = ELBO("classification", num_data=8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            elbo(model, model(torch.randn(8, 4)), y)
    assert [w.category for w in caught] == [LeanBayesWarning] * (said is not None)
    assert said is None or said in str(caught[0].message)
