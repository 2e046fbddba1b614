"""Smaller models: what can be left out of a posterior."""
