"""A training loop of your own: three lines make it Bayesian.

python examples/own_loop.py
"""

import argparse

import torch

import leanbayes as lb
from leanbayes.data import load, loaders
from leanbayes.models import mlp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=30)
options = parser.parse_args()

torch.manual_seed(0)
digits = load("digits")
train = loaders(digits, batch_size=64)["train"]
model = mlp(64, (64,), 10)

lb.bayesianize_(model, lb.MeanField())  # 1: before the optimiser is made
elbo = lb.ELBO("classification", num_data=len(digits.train))  # 2: instead of the cross-entropy
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(options.epochs):
    for inputs, labels in train:
        terms = elbo(model, model(inputs), labels)  # 3: nll per datum + KL / num_data
        optimizer.zero_grad()
        terms.loss.backward()
        optimizer.step()
    if epoch in (0, options.epochs - 1):
        print(f"epoch {epoch + 1}: loss {terms.loss:.3f} = nll {terms.nll:.3f} + KL {terms.kl:.0f} / {elbo.num_data}")

inputs, labels = digits.test[:]
prediction = lb.predict(model, inputs, task="classification")
right = prediction.labels == labels
entropy = prediction.entropy
print(f"accuracy {right.float().mean():.1%}")
print(f"mean entropy where it is right {entropy[right].mean():.2f}, where it is wrong {entropy[~right].mean():.2f}")
