"""What methods cost on a network and a machine of the user's own: training steps and predictions, timed in turns."""

from .result import Benchmark, Scaling, Timed
from .run import benchmark, scaling

__all__ = ["Benchmark", "Scaling", "Timed", "benchmark", "scaling"]
