"""An encoder and a decoder of your own become an autoencoder whose codes can be cut to any length.

python examples/ordered_latents.py --out plot.png
"""

import argparse

import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import load
from leanbayes.latents.pictures import progressive, write_grid

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--out", default="plot.png")
options = parser.parse_args()

torch.manual_seed(0)
digits = load("digits", normalise=False)  # pixels in [0, 1]
train, test = digits.train.tensors[0], digits.test.tensors[0]

encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU())
decoder = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 64), nn.Unflatten(1, (1, 8, 8)))
model = lb.Autoencoder(encoder, decoder, lb.OrderedLatents(12), shape=(1, 8, 8))
lb.fit(model, train, task="bernoulli", epochs=options.epochs, lr=3e-3, batch_size=64)

print(lb.evaluate_generation(model, test, importance=16))  # a quarter, a half, three quarters, all of the code
lengths = model.lengths(test)
print(f"likely code lengths: from {lengths.min()} to {lengths.max()}, {lengths.float().mean():.1f} on average")

short = model.encode(test[:1], length=4)  # four numbers an image
print(f"an image as {short.numel()} numbers: {[round(v, 2) for v in short[0].tolist()]}")
small = lb.extract(model, 4 / 12)  # a decoder that reads four numbers
print(f"extracted: {small.decoder[0]}, mean squared error {(small.reconstruct(test) - test).square().mean():.4f}")

write_grid(options.out, progressive(model, 12, (1, 2, 4, 8, 12)), scale=4)  # a row a length
print(f"wrote {options.out}")
