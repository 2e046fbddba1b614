"""Only the head of a trained network Bayesian: 100 samples for about the price of one pass.

python examples/last_layer.py
"""

import argparse
import time

import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import load, loaders
from leanbayes.models import resnet18_cifar

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--width", type=int, default=32, help="channels of the first stage; a ResNet-18 has 64")
options = parser.parse_args()

torch.manual_seed(0)
digits = load("digits")
train, _, test = loaders(digits, batch_size=64).values()

body = resnet18_cifar(in_channels=1, width=options.width)
body.fc = nn.Identity()
model = nn.Sequential(nn.Upsample(scale_factor=4), body, nn.Linear(8 * options.width, 10))
lb.fit(model, train, epochs=options.epochs)  # stands for the trained network that you have
plain = lb.evaluate(model, test, name="plain")

lb.bayesianize_(model, {"2": lb.MeanField()})  # the weights of the head become its means
body.requires_grad_(False).eval()  # the body stays as it is, its BatchNorm too
lb.fit(model, train, epochs=options.epochs, lr=3e-3)
head = lb.evaluate(model, test, samples=100, name="Bayesian head")

print(f"{'':14}  accuracy     NLL     ECE")
for result in (plain, head):
    print(f"{result.name:14}  {result['accuracy']:8.1%}  {result['nll']:6.3f}  {result['ece']:6.3f}")

images = digits.test[:64][0]
times: dict[int, list[float]] = {1: [], 100: []}
for _ in range(5):
    for samples, taken in times.items():
        began = time.perf_counter()
        lb.predict(model, images, samples=samples)
        taken.append(time.perf_counter() - began)
print(f"100 samples take {min(times[100]) / min(times[1]):.2f} times as long as one")
