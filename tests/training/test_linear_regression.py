"""Where the answer is known: Bayesian linear regression with a mean-field Gaussian posterior."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes.convert.apply import bayesianize_
from leanbayes.likelihoods import Regression
from leanbayes.methods import MeanField
from leanbayes.priors import Normal
from leanbayes.training.callbacks import Callback, State
from leanbayes.training.fit import fit


class AverageIterates(Callback):
    """Polyak averaging: the mean of the parameters after the burn-in takes the place of the last ones."""

    def __init__(self, burn_in: int) -> None:
        self.burn_in, self.total, self.count = burn_in, {}, 0

    def after_step(self, state: State) -> None:
        if state.step > self.burn_in:
            self.count += 1
            for name, p in state.model.named_parameters():
                self.total[name] = self.total.get(name, 0) + p.detach()

    def fit_end(self, state: State) -> None:
        with torch.no_grad():
            for name, p in state.model.named_parameters():
                p.copy_(self.total[name] / self.count)


def test_the_trained_posterior_is_the_closed_form():
    """The best factorised Gaussian has means A^-1 X'y / s^2 and variances 1 / A_ii, with A = X'X / s^2 + I / t^2."""
    generator = torch.Generator().manual_seed(0)
    n, d, noise, prior = 24, 4, 0.5, 1.0
    x = torch.randn(n, d, generator=generator) @ (torch.eye(d) + 0.3)  # correlated features
    y = x @ torch.tensor([1.0, -0.8, 0.6, 1.4]) + noise * torch.randn(n, generator=generator)
    precision = x.T @ x / noise**2 + torch.eye(d) / prior**2
    mean, variance = torch.linalg.solve(precision, x.T @ y / noise**2), 1 / precision.diag()

    model = nn.Sequential(nn.Linear(d, 1, bias=False))
    bayesianize_(model, MeanField(prior=Normal(std=prior), std=0.1))
    # Each batch is the whole data set 100 times over: the same ELBO, with noise drawn independently in each copy.
    copies = TensorDataset(x.repeat(1000, 1), y.repeat(1000))
    fit(
        model,
        DataLoader(copies, batch_size=100 * n),
        num_data=n,
        task=Regression(std=noise),
        kl_weight=1.0,
        epochs=70,
        lr=0.05,
        callbacks=[AverageIterates(burn_in=250)],
        progress=False,
    )
    q = model[0].posteriors["weight"]
    torch.testing.assert_close(q.mean[0], mean, rtol=0.02, atol=0)
    torch.testing.assert_close(q.variance[0], variance, rtol=0.02, atol=0)
