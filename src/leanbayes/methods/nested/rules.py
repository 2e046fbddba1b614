"""Rule sets of variational nested dropout for its three networks (6.1 and appendix C.1).

As in the authors' code, the first convolution stays plain, the other convolutions are ordered unless their channels
meet in an addition, and dense layers are random and not ordered. For other networks use `lb.Nested()`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ...method import Method
from .config import Nested, Ordered

Rules = dict[Any, Method | None]


def vgg11_bn(method: Ordered | None = None) -> Rules:
    """`leanbayes.models.vgg11_bn`: the outputs of conv2 to conv8, in 32 groups of which 2 always stay.

    >>> import leanbayes as lb
    >>> from leanbayes.models import vgg11_bn as network
    >>> lb.plan(network(width=0.25), vgg11_bn(lb.NestedDropout())).converted
    ['conv2', 'conv3', 'conv4', 'conv5', 'conv6', 'conv7', 'conv8']
    """
    return _rules(method or Nested(), ("conv*",), ("dense*",))


def resnext_cifar(method: Ordered | None = None) -> Rules:
    """`leanbayes.models.resnext_cifar`: the inner channels of every bottleneck, in 32 groups of which 1 always stays.

    >>> import leanbayes as lb
    >>> from leanbayes.models import resnext_cifar as network
    >>> lb.plan(network(depth=11, cardinality=2, base_width=8), resnext_cifar(lb.NestedDropout())).converted[:2]
    ['stage1.0.reduce', 'stage1.0.grouped']
    """
    return _rules(method or Nested(base_groups=1), ("*.reduce", "*.grouped"), ("*.expand", "*.downsample.*", "fc"))


def mobilenet_v2(method: Ordered | None = None) -> Rules:
    """`leanbayes.models.mobilenet_v2`: the channels that a depthwise convolution filters, in 16 groups, 1 always on.

    The first block filters the channels of the stem, which stay.

    >>> import leanbayes as lb
    >>> from leanbayes.models import mobilenet_v2 as network
    >>> lb.plan(network(width=0.25), mobilenet_v2(lb.NestedDropout())).converted[:2]
    ['stage2.0.expand', 'stage2.1.expand']
    """
    rest = ("*.depthwise", "*.project", "head", "fc")
    return _rules(method or Nested(groups=16, base_groups=1), ("*.expand",), rest)


RULES = {"vgg11_bn": vgg11_bn, "resnext_cifar": resnext_cifar, "mobilenet_v2": mobilenet_v2}
"""The rule sets by the name of the network."""


def _rules(method: Ordered, ordered: tuple[str, ...], rest: tuple[str, ...]) -> Rules:
    """The first layer plain, some ordered, the others not ordered and random if the method's weights are."""
    rules: Rules = {"conv1": None, **dict.fromkeys(ordered, dataclasses.replace(method, order=ordered))}
    if isinstance(method, Nested):
        rules.update(dict.fromkeys(rest, dataclasses.replace(method, order=())))
    return rules
