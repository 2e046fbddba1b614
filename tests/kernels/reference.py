"""What a float32 result is held against: the same in float64, and the size of the terms it is a sum of."""

from __future__ import annotations

TOLERANCE = 2e-6
"""Of the terms' sum of magnitudes; rounding alone makes up to 5e-7 of it, here and in torch's own float32."""


def close(ours, exact, size, name):
    """Every element by itself. A sum of terms that cancel is known to a share of the terms, not of itself."""
    excess = (ours.detach().double() - exact).abs() - TOLERANCE * size
    assert float(excess.max()) <= 0, f"{name}: {float(excess.max()):.2e} too far"


def doubled(tensors, absolute=False):
    """Copies in float64 that want a gradient; absolute values of them give the size of every term downstream."""
    return [None if t is None else (t.abs() if absolute else t).detach().double().requires_grad_() for t in tensors]
