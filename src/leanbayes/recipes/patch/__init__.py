"""Ensemble model patching: mixtures over a few parameters of a network."""
