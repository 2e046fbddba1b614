"""Memory that comes back is used again, and never while someone holds it."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading

import pytest
import torch

from leanbayes.errors import OutOfMemoryError
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


def test_what_is_kept_is_bounded_by_what_was_in_use_at_once():
    """Forty sizes one after the other: about the largest of them is kept, not their sum."""
    buffers.forget()
    held, _ = buffers.kept()
    sizes = [2**19 * n for n in range(4, 44)]
    for elements in sizes * 3:
        buffers.empty((elements,))
    gc.collect()
    used, free = buffers.kept()
    assert used == held
    assert 0 < free <= buffers.SPARE * (held + 1.125 * 4 * max(sizes))


def test_a_training_step_finds_all_its_memory_again():
    """Activations of many sizes at once, freed in the reverse order: from the second step on nothing new is mapped."""
    buffers.forget()
    shapes, seen = [(2**18 * n,) for n in (3, 5, 8, 13, 21, 5, 8)], []
    for _ in range(4):
        step = [buffers.empty(shape) for shape in shapes]
        seen.append({t.data_ptr() for t in step})
        while step:
            step.pop()
    assert seen[1] == seen[2] == seen[3] == seen[0]


def test_a_step_whose_gradients_are_larger_than_what_is_free_finds_all_its_memory_again(monkeypatch):
    """As in LeNet-5: small activations are freed before a large one is asked for that has no room in them."""
    buffers.forget()
    mapped, map_new = [], buffers._mapped
    monkeypatch.setattr(buffers, "_mapped", lambda size: mapped.append(size) or map_new(size))
    for _ in range(3):
        mapped.clear()
        held = [buffers.empty((2**19 * n,)) for n in (3, 3, 1, 1, 1, 1, 1)]
        del held[-3:]
        held.append(buffers.empty((2**19 * 3,)))
        del held
    assert not mapped


def test_working_memory_of_many_sizes_is_found_again(monkeypatch):
    """Layers ask for it at different times: together it is more than may be kept, at once it is one of them."""
    buffers.forget()
    mapped, map_new = [], buffers._mapped
    monkeypatch.setattr(buffers, "_mapped", lambda size: mapped.append(size) or map_new(size))
    new = []
    for _ in range(5):
        mapped.clear()
        activations = [buffers.empty((2**21,)) for _ in range(8)]
        for pages in range(5, 13):
            activations.pop()
            buffers.working(2**19 * pages)
        new.append(len(mapped))
    assert new[0] >= 8
    assert new[-2:] == [0, 0]


def test_the_memory_of_a_peak_long_ago_is_given_back(monkeypatch):
    buffers.forget()
    monkeypatch.setattr(buffers, "RECENT", 4)
    peak = [buffers.empty((2**20,)) for _ in range(16)]
    del peak
    for _ in range(12):
        buffers.empty((2**18,))
    gc.collect()
    assert sum(buffers.kept()) < 16 * 4 * 2**20


@pytest.mark.parametrize("line", range(60))
def test_two_threads_never_get_the_same_memory(line, monkeypatch):
    """A second thread asks for memory just before the first one reaches a line of the code, whichever it is."""
    monkeypatch.setattr(buffers, "SMALLEST", 4096)
    monkeypatch.setattr(buffers, "PAGE", 4096)
    buffers.forget()
    ready = [buffers.empty((1024,)) for _ in range(4)]
    del ready
    for name in ("RECENT", "FORGOTTEN"):  # the next request is the one that tidies up
        monkeypatch.setattr(buffers, name, buffers._KEPT.requests + 1, raising=False)
    held, lines, others = [], itertools.count(), []

    def other():
        held.extend([buffers.empty((1024,)), buffers.empty((1024,))])

    def trace(frame, event, _):
        if frame.f_code.co_filename != buffers.__file__:
            return None
        if event == "line" and next(lines) == line:
            others.append(threading.Thread(target=other))
            others[0].start()
            others[0].join(0.02)  # it may have to wait for the first one, which goes on then
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        held.append(buffers.empty((1024,)))
    finally:
        sys.settrace(before)
    for thread in others:
        thread.join()
    held += [buffers.empty((1024,)) for _ in range(4)]
    assert len({t.data_ptr() for t in held}) == len(held)


def test_memory_may_come_back_while_more_is_asked_for():
    """A collection of garbage can run inside a request, in the thread that holds the lock, and free tensors there."""
    gc.collect()
    buffers.forget()
    used, _ = buffers.kept()
    ring = [buffers.empty((2**19,))]
    ring.append(ring)
    with buffers._KEPT.lock:
        del ring
        gc.collect()
    assert buffers.kept() == (used, 2**21)


def test_a_forked_process_goes_on_while_the_lock_was_held():
    held = buffers.empty((2**19,)).fill_(3.0)
    with buffers._KEPT.lock:
        child = os.fork()
        if not child:  # no pytest in here
            ok = buffers.empty((2**19,)).fill_(1.0).data_ptr() != held.data_ptr() and bool(held.eq(3.0).all())
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("elements", [10, 2**19])
def test_defaults_of_torch_do_not_matter(elements):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            x = buffers.empty((elements,))
    finally:
        torch.set_default_dtype(before)
    assert (x.dtype, x.device.type) == (torch.float32, "cpu")


def test_memory_that_is_not_there_is_an_error_of_ours():
    used = buffers.kept()[0]
    with pytest.raises(OutOfMemoryError, match="smaller batches"):
        buffers.empty((2**52,))
    assert buffers.kept()[0] == used
