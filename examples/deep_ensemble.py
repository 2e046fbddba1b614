"""Five networks instead of one: a better answer, and how far they disagree.

python examples/deep_ensemble.py
"""

import argparse

import torch

import leanbayes as lb
from leanbayes.data import load, loaders
from leanbayes.methods.ensemble.layer import member
from leanbayes.models import mlp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=20, help="of each member")
parser.add_argument("--members", type=int, default=5)
options = parser.parse_args()

torch.manual_seed(0)
digits = load("digits")
parts = loaders(digits, batch_size=64)
letters = load("not-digits/letters", parts="test", normalise=digits).test

model = mlp(64, (64,), 10)
config = lb.Ensemble(members=options.members)
print(lb.bayesianize_(model, config))

# a step trains one member, in turn: as many times the epochs as there are members
lb.fit(model, parts["train"], epochs=config.members * options.epochs, lr=3e-3, progress=False)

one = member(model, 0)  # a plain network, trained exactly as if it had been alone
print(f"\n{'':12}  accuracy     NLL     ECE")
for name, network in (("one network", one), (f"{config.members} networks", model)):
    result = lb.evaluate(network, parts["test"], name=name, progress=False)
    print(f"{name:12}  {result['accuracy']:8.1%}  {result['nll']:6.3f}  {result['ece']:6.3f}")

known, strange = (lb.predict(model, data[:][0]).mutual_information.mean() for data in (digits.test, letters))
print(f"they disagree by {known:.3f} nats on digits and by {strange:.3f} on letters, which they have never seen")
