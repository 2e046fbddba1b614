"""The cost of methods on the user's network and machine: training steps and predictions, timed in turns."""

from .result import Benchmark, Scaling, Timed
from .run import benchmark, scaling

__all__ = ["Benchmark", "Scaling", "Timed", "benchmark", "scaling"]
