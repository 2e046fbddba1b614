"""Segmentation of ambiguous images: U-Nets with latent variables, which say what several annotators would have said."""
