"""What torch is too slow for: compiled kernels for the nonzeros of a weight, each with a pure-torch twin beside it."""
