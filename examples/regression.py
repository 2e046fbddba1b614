"""Regression whose noise depends on the input: intervals that are as wide as they need to be, drawn.

python examples/regression.py --out regression.png
"""

import argparse

import torch
from matplotlib.figure import Figure

import leanbayes as lb
from leanbayes.likelihoods import Regression
from leanbayes.models import mlp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=400)
parser.add_argument("--out", default="regression.png")
options = parser.parse_args()


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise that grows from 0.05 on the left to 0.4 on the right."""
    x = 4 * torch.rand(count, 1) - 2
    return x, torch.sin(2 * x) + (0.05 + 0.0875 * (x + 2)) * torch.randn(count, 1)


torch.manual_seed(0)
x, y = draw(400)
model = mlp(1, (50,), 2)  # two outputs: the mean, and the noise at that input
lb.bayesianize_(model, lb.MeanField())
lb.fit(model, (x, y), task=Regression(noise="heteroscedastic"), epochs=options.epochs, lr=2e-2, batch_size=100)

result = lb.evaluate(model, draw(1000))
print(result)

grid = torch.linspace(-4, 4, 200).unsqueeze(1)  # the data end at -2 and 2
prediction = lb.predict(model, grid, samples=100)
low, high = prediction.interval(0.9)
for at in (-2.0, 0.0, 2.0, 4.0):
    row = int((grid[:, 0] - at).abs().argmin())
    noise, doubt = prediction.aleatoric[row].sqrt().item(), prediction.epistemic[row].sqrt().item()
    print(f"x = {at:4}: {prediction.mean[row].item():6.2f}, noise {noise:.2f}, doubt about the network {doubt:.2f}")

figure = Figure(figsize=(8, 4.5), layout="constrained")
axes = figure.subplots()
axes.fill_between(grid[:, 0], low[:, 0], high[:, 0], alpha=0.25, label="90 % of the targets")
axes.plot(grid, prediction.mean, label="expected")
axes.plot(x, y, "k.", markersize=2, label="data")
axes.legend()
figure.savefig(options.out, dpi=150)
print(f"wrote {options.out}")
