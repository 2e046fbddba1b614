"""Only the head of a trained network Bayesian: 100 samples for about the price of one pass, and no training from scratch.

python examples/last_layer.py
"""

import argparse
import time

import torch

import leanbayes as lb
from leanbayes.data import load, loaders
from leanbayes.models import resnet18_cifar

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=4)
options = parser.parse_args()

torch.manual_seed(0)
digits = load("digits")
train, _, test = loaders(digits, batch_size=64).values()

backbone = resnet18_cifar(num_classes=10, in_channels=1, width=16)
lb.fit(backbone, train, epochs=options.epochs)  # an ordinary network, as you may have one already
plain = lb.evaluate(backbone, test, name="plain")

lb.bayesianize_(backbone, {backbone.fc: lb.MeanField()})  # its weights become the means
for name, parameter in backbone.named_parameters():
    parameter.requires_grad = name.startswith("fc.")  # the rest stays as it is
lb.fit(backbone, train, epochs=options.epochs, lr=3e-3)
head = lb.evaluate(backbone, test, samples=100, name="Bayesian head")
print(f"{'':14}  accuracy     NLL     ECE")
for result in (plain, head):
    print(f"{result.name:14}  {result['accuracy']:8.1%}  {result['nll']:6.3f}  {result['ece']:6.3f}")

images = digits.test[:64][0]


def seconds(samples: int, repeats: int = 5) -> float:
    """The quickest of some predictions."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        lb.predict(backbone, images, samples=samples)
        times.append(time.perf_counter() - began)
    return min(times)


print(f"100 samples take {seconds(100) / seconds(1):.2f} times as long as one")
