"""A user's own loop, with all that a method may ask of it."""

import torch

import leanbayes as lb
from leanbayes.training.callbacks import State, notify


def train(model, x, y, steps, wrapped=None):
    """A few steps of plain SGD on the ELBO, with the callbacks of the methods."""
    elbo = lb.ELBO("classification", num_data=1000)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    hooks, state = lb.callbacks(model), State(model, optimiser, total_steps=steps)
    model.train()
    notify(hooks, "fit_start", state)
    for _ in range(steps):
        notify(hooks, "before_step", state)
        optimiser.zero_grad()
        state.terms = elbo(model, (wrapped or model)(x), y)
        state.terms.loss.backward()
        notify(hooks, "after_backward", state)
        optimiser.step()
        state.step += 1
        notify(hooks, "after_step", state)
    notify(hooks, "fit_end", state)
    return model
