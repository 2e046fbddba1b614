"""The cost of a model: parameters, multiply-accumulates, bytes, seconds.

Three kinds of numbers, never one for another. Nominal: `Cost.macs`, `training_flops` and `inference_flops` follow from
shapes and densities, as papers count; whether a machine gains by them is another question. Stored: `Cost.bytes` and
`training_bytes` are the sizes of tensors that exist. Measured: `seconds_of` runs a clock.
"""

from .bill import Cost, LayerCost
from .count import cost, plain_parameters
from .training import TrainingBytes, seconds_of, training_bytes

__all__ = ["Cost", "LayerCost", "TrainingBytes", "cost", "plain_parameters", "seconds_of", "training_bytes"]
