"""Digits in two minutes: convert a network, train it, ask it, evaluate it, save it and load it again.

python examples/quickstart.py
"""

import argparse
import tempfile
from pathlib import Path

import leanbayes as lb
from leanbayes.data import load, loaders
from leanbayes.models import convnet

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=30)
options = parser.parse_args()

digits = load("digits")  # embedded; also "mnist", "cifar10", "uci/boston", ...
train, val, test = loaders(digits, batch_size=64).values()
letters = load("not-digits/letters").test  # no digits: it should doubt them

model = convnet(num_classes=10)  # any nn.Module will do
print(lb.bayesianize_(model, lb.MeanField()))
lb.fit(model, train, val=val, epochs=options.epochs, lr=2e-3)

images, labels = digits.test[:5]
prediction = lb.predict(model, images, samples=32)
print("\ntruth  answer  how sure  doubt (nats)  of it about the network")
for truth, answer, probs, entropy, network in zip(
    labels, prediction.labels, prediction.probs, prediction.entropy, prediction.mutual_information, strict=True
):
    print(f"{truth:5}  {answer:6}  {probs.max():8.1%}  {entropy:12.3f}  {network:20.3f}")

result = lb.evaluate(model, test, ood={"letters": letters})
print(f"\n{result}")

with tempfile.TemporaryDirectory() as folder:
    path = lb.save(model, Path(folder) / "digits.safetensors")  # one file, no pickle
    again = lb.load(path, into=convnet(num_classes=10))
same = lb.predict(again, images, samples=32).probs.equal(prediction.probs)
print(f"\nsaved and loaded: {'the same' if same else 'other'} predictions")
