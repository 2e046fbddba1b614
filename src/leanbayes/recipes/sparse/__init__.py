"""Sparse subspace variational inference: Bayesian networks that are sparse throughout training."""
