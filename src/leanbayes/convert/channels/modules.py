"""The rules of modules for channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from ...layers.contract import option
from .flow import Flow, Layout
from .operations import elementwise, flatten, interpolate, softmax, spatial
from .rules import MODULES, Call, module_rule, not_followed

ELEMENTWISE = """
ReLU ReLU6 LeakyReLU RReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Softplus Softsign LogSigmoid Hardtanh Hardswish
Hardsigmoid Hardshrink Softshrink Tanhshrink Threshold Identity Dropout AlphaDropout FeatureAlphaDropout
"""


def _family(*stems: str) -> list[type[nn.Module]]:
    """The existing 1d, 2d and 3d classes of these names."""
    names = [f"{stem}{n}d" for stem in stems for n in (1, 2, 3)]
    return [vars(nn)[name] for name in names if name in vars(nn)]


@module_rule(nn.Linear, *_family("Conv", "ConvTranspose"), source=True)
def weighted(flow: Flow, call: Call) -> Any:
    """Consumes channels and produces others; a depthwise convolution passes its own on, as one or several features."""
    module, name = call.module, call.step.name
    if isinstance(module, nn.Linear):
        dim, fan_in, fan_out, groups = -1, module.in_features, module.out_features, 1
    else:
        dim, fan_in, fan_out = -1 - len(module.kernel_size), module.in_channels, module.out_channels
        groups = module.groups
    x = flow.read(call.x, dim, fan_in)
    if x is None:
        return not_followed(flow, call)
    ndim = x.ndim if dim == -1 else 1 - dim
    if groups == fan_in > 1:
        out = replace(x.times(fan_out // fan_in), ndim=ndim)
        flow.record_use("through", name, out)
        return out
    out = flow.fresh(fan_out, dim, ndim)
    flow.record_use("in", name, x)
    flow.record_use("out", name, out)
    if groups > 1:
        flow.require("equal", groups, name, x)
        flow.require("equal", groups, name, out)
    return out


@module_rule(nn.Embedding, source=True)
def embedded(flow: Flow, call: Call) -> Layout:
    """Produces channels in the last dimension; its inputs are indices."""
    out = flow.fresh(call.module.embedding_dim, -1, None)
    flow.record_use("out", call.step.name, out)
    if call.module.max_norm is not None:
        flow.fix(out, f"has its norm bounded by '{call.step.name}'")
    return out


@module_rule(*_family("BatchNorm", "InstanceNorm"), nn.SyncBatchNorm, nn.GroupNorm, nn.PReLU)
def per_channel(flow: Flow, call: Call) -> Any:
    """Has a state for each channel of dimension 1; GroupNorm computes statistics within runs of channels."""
    module, name, x = call.module, call.step.name, call.x
    features = option(module, "num_features", "num_channels", "num_parameters")
    if isinstance(module, nn.PReLU) and features == 1:
        return elementwise(flow, call)
    sized = x.sized(features) if x.ndim is None or x.is_dim(1) else None
    if sized is None:
        return not_followed(flow, call)
    flow.record_use("through", name, sized)
    if isinstance(module, nn.GroupNorm):
        flow.require("whole", module.num_groups, name, sized)
    return sized


@module_rule(nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
def across_channels(flow: Flow, call: Call) -> Any:
    """Normalises over the last dimensions, or over neighbouring channels: each depends on the others."""
    if isinstance(call.module, nn.LocalResponseNorm) or call.x.dim >= -len(call.module.normalized_shape):
        flow.fix(call.x, f"is normalised across channels by '{call.step.name}'")
    return call.x


@module_rule(nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d)
def softmax_module(flow: Flow, call: Call) -> Any:
    """Normalises over one dimension."""
    return softmax(flow, call, -3 if isinstance(call.module, nn.Softmax2d) else call.module.dim)


module_rule(*(vars(nn)[name] for name in ELEMENTWISE.split()), *_family("Dropout"))(elementwise)
module_rule(nn.Upsample)(interpolate)


@module_rule(
    *_family("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool"),
    *_family("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
)
def spatial_module(flow: Flow, call: Call) -> Any:
    """Works on the trailing dimensions, on every channel alike."""
    kind = next(kind for kind in type(call.module).__mro__ if kind in MODULES)  # a subclass may have any name
    return spatial(flow, call, int(kind.__name__[-2]))


@module_rule(nn.Flatten)
def flattened(flow: Flow, call: Call) -> Any:
    """Merges dimensions."""
    return flatten(flow, call, call.module.start_dim, call.module.end_dim)
