"""Metrics as pure functions, their computation over batches, and their confidence intervals."""
