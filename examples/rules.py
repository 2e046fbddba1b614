"""Rules say which layers become Bayesian and how: by type, by name, by module, by a function of your own.

python examples/rules.py
"""

from torch import nn

import leanbayes as lb
from leanbayes.errors import ConversionError
from leanbayes.models import resnet18_cifar


def network() -> nn.Module:
    return resnet18_cifar(num_classes=10, width=8)


print("By type and name; names win over types, None leaves alone:")
model = network()
rules = {
    nn.Conv2d: lb.Dropout(0.1),
    nn.Linear: lb.MeanField(prior=lb.Normal(std=0.5)),
    "layer1.*": None,
}
print(lb.plan(model, rules))  # looks, touches nothing
lb.bayesianize_(model, rules)

print("\nThis very module, and whatever a function picks:")
model = network()
picked = {
    model.fc: lb.MeanField(),
    lambda name, module: isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1): lb.VariationalDropout(),
}
plan = lb.bayesianize_(model, picked)
print(f"converted {', '.join(plan.converted)}; {plan.growth:.2f} times the parameters")

print("\nBack to plain modules, the means as weights:")
lb.restore_(model)
print(type(model.fc).__name__, tuple(model.fc.weight.shape))

print("\nA rule that matches nothing is refused before anything is touched:")
try:
    lb.bayesianize_(model, {"layer9.*": lb.MeanField()})
except ConversionError as error:
    print(error)
