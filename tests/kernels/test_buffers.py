"""Memory that comes back is used again, and never while someone holds it."""

from __future__ import annotations

import gc

import torch

from leanbayes.kernels import buffers


def test_memory_is_used_again_when_the_last_tensor_on_it_goes():
    buffers.forget()
    shape = (3, 2**18)
    first = buffers.empty(shape).fill_(1.0)
    address, part = first.data_ptr(), first[1]
    del first
    gc.collect()
    other = buffers.empty(shape).fill_(2.0)
    assert other.data_ptr() != address  # a part of the first is still in use
    assert part.eq(1.0).all()
    del part
    gc.collect()
    assert buffers.empty(shape).data_ptr() == address


def test_it_is_an_ordinary_tensor():
    x = buffers.empty((2**18, 2))
    assert (x.dtype, x.shape, x.is_contiguous(), x.data_ptr() % 64) == (torch.float32, (2**18, 2), True, 0)
    y = x.fill_(3.0).requires_grad_() * 2
    y.sum().backward()
    assert x.grad.eq(2.0).all()
    assert buffers.empty((3, 0)).shape == (3, 0)


def test_what_nobody_asks_for_is_given_back(monkeypatch):
    buffers.forget()
    monkeypatch.setattr(buffers, "FORGOTTEN", 4)
    del (kept := [buffers.empty((2**19,))])[0]
    gc.collect()
    assert sum(map(len, buffers._KEPT.free.values())) == 1
    for _ in range(12):
        buffers.empty((2**18,))
    assert not buffers._KEPT.free[4 * 2**19]
    assert not kept
