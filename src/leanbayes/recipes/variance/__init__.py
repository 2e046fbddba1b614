"""Variance networks: layers whose weights have large variances and small means."""
