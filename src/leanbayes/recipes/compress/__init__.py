"""Experiments of smaller models: students of Bayesian networks."""
