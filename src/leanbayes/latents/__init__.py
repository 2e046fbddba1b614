"""Autoencoders with latent codes: ordered ones, which can be cut to any length (VND-AE), and their rivals."""
