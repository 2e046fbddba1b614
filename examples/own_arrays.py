"""Your own network and arrays: a plain loop, then Bayesian, evaluated, with a guarantee, saved and loaded."""

import numpy as np
import torch
from torch import nn

import leanbayes as lb


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 64), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


rng = np.random.default_rng(0)
x = rng.normal(size=(1500, 6)).astype("float32")
y = (x[:, :3] + 0.5 * rng.normal(size=(1500, 3))).argmax(1)
(x_train, x_cal, x_test), (y_train, y_cal, y_test) = np.split(x, [800, 1100]), np.split(y, [800, 1100])

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):  # your own loop, or weights that you have
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.from_numpy(x_train)), torch.from_numpy(y_train)).backward()
    optimizer.step()

print(lb.bayesianize_(model, lb.MeanField()))
lb.fit(model, (x_train, y_train), task="classification", epochs=20, progress=False)
lb.conformalize_(model, (x_cal, y_cal), coverage=0.9, progress=False)
print(lb.evaluate(model, (x_test, y_test), progress=False))
lb.save(model, "own.safetensors")
again = lb.load("own.safetensors", into=Net())
print(lb.predict(again, x_test[:5]).prediction_sets)
