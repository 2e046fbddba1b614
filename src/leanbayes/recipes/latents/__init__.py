"""Experiments of ordered latents: section 6.2 of variational nested dropout."""
