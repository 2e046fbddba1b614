"""Variational nested dropout: nested posteriors, whose width is chosen after training."""
