"""What a model is made of, to see whether anything was touched."""

import torch
from torch import nn


def snapshot(model):
    """Identities of modules and parameters, flags, values, and the random state."""
    lazy = nn.parameter.UninitializedTensorMixin
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        [(name, id(m), m.training, sorted(m.__dict__)) for name, m in model.named_modules(remove_duplicate=False)],
        {name: (id(t), t.requires_grad, None if isinstance(t, lazy) else t.tolist()) for name, t in tensors.items()},
        torch.get_rng_state().tolist(),
    )
