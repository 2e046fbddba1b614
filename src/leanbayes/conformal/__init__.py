"""Conformal prediction: sets and intervals that hold the truth as often as promised, whatever the model is."""
