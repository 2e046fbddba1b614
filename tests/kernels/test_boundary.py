"""What does not fit is refused before a kernel reads or writes a single number."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from leanbayes.errors import DataError, LeanBayesError
from leanbayes.kernels import geometry, layout, library, norm, sparse
from leanbayes.kernels.geometry import Geometry
from leanbayes.kernels.plan import plan
from leanbayes.layers.perturb import perturb


def linear(outputs=4, inputs=16, count=10):
    """A plan, and its parameters."""
    torch.manual_seed(0)
    index = torch.randperm(outputs * inputs)[:count].to(torch.int32)
    return plan(geometry.of_linear(outputs, inputs), index), torch.randn(count), torch.rand(count)


def order(ready):
    return ready.backward.rows, ready.backward.offsets, ready.backward.slots


def test_features_that_are_not_the_layers_are_refused():
    ready, mu, sigma = linear()
    with pytest.raises(DataError, match=r"expected activations of 16 channels .* received 8 at 1"):
        sparse.both(layout.block(torch.randn(4, 8)), mu, sigma, None, ready, 0, 4)
    with pytest.raises(DataError, match="16 channels"):
        sparse.both(layout.block(torch.randn(4, 17)), mu, sigma, None, ready, 0, 4)


def test_a_flattened_image_of_another_size_is_refused():
    with pytest.raises(DataError, match=r"64 features .* 1024 positions"):
        plan(geometry.of_linear(10, 64, (1, 1024)), torch.zeros(1, dtype=torch.int32))


def test_grey_images_for_a_layer_of_colours_are_refused():
    ready = plan(geometry.of_conv(nn.Conv2d(3, 4, 3), (8, 8)), torch.arange(20, dtype=torch.int32))
    with pytest.raises(DataError, match=r"3 channels .* received 1 at 64"):
        sparse.both(layout.block(torch.randn(2, 1, 8, 8)), torch.ones(20), None, None, ready, 0, 2)
    with pytest.raises(DataError, match=r"64 positions"):
        sparse.both(layout.block(torch.randn(2, 3, 32, 32)), torch.ones(20), None, None, ready, 0, 2)


def test_the_backward_pass_checks_for_itself():
    ready, mu, sigma = linear(64, 4096, 500)
    grad = slope = torch.randn(1, 1, 64, 16)
    numbers, wants = ready.numbers(4), [True] * 3
    with pytest.raises(DataError, match="4096 channels"):
        sparse.gradients(grad, layout.block(torch.randn(4, 16)), mu, sigma, slope, order(ready), numbers, wants)
    x = layout.block(torch.randn(4, 4096))
    with pytest.raises(DataError, match="a gradient of shape"):
        sparse.gradients(grad[:, :, :32], x, mu, sigma, slope, order(ready), numbers, wants)
    with pytest.raises(DataError, match="a slope of shape"):
        sparse.gradients(grad, x, mu, sigma, slope[:, :, :1], order(ready), numbers, wants)
    with pytest.raises(DataError, match="elements"):  # the line of a norm of fewer channels
        sparse.gradients(grad, x, mu, sigma, slope, order(ready), numbers, wants, None, grad, torch.ones(6 * 32))


def test_a_norm_of_other_channels_is_refused():
    x, four = torch.randn(1, 9, 8, 16), torch.ones(4)
    for made in (
        norm.Norm(four, four, four, four, 1e-5, True),
        norm.Norm(four, None, torch.ones(8), torch.ones(8), 0.1, True),
    ):
        with pytest.raises(DataError, match="norm of 8 channels"):
            norm.finish(x, 16, made, None, False)
        with pytest.raises(DataError, match="norm of 8 channels"):
            norm.gradients(x, 16, x, None, False, made, None)
    with pytest.raises(DataError, match="batch of 17"):
        norm.moments(x, 17)
    with pytest.raises(DataError, match="empty batch"):
        norm.moments(x[:0], 0)
    with pytest.raises(DataError, match="other activation"):
        norm.finish(x, 16, None, x[:, :1], False)


@pytest.mark.parametrize("size", [(2, 2), (3, 1)])
def test_an_image_smaller_than_the_kernel_is_refused(size):
    with pytest.raises(DataError, match=r"at least \(3, 3\).*larger images"):
        plan(geometry.of_conv(nn.Conv2d(1, 1, 3), size), torch.zeros(1, dtype=torch.int32))


def test_a_convolution_that_the_kernels_do_not_know_has_no_geometry():
    with pytest.raises(DataError, match="dilation"):
        geometry.of_conv(nn.Conv2d(1, 1, 3, dilation=2), (8, 8))
    with pytest.raises(DataError, match="strides of at most 8"):
        plan(Geometry(1, 1, 1, (1, 1), (9, 1), (0, 0), (9, 9)), torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize(("kernel", "padding"), [((16, 8), (0, 0)), ((2, 2), (2, 0))])
def test_pooling_that_a_byte_cannot_hold_or_of_nothing_is_refused(kernel, padding):
    """128 taps do not fit into the byte that says which one won; a window in the padding alone has none."""
    g = Geometry(1, 1, 1, kernel, (1, 1), padding, (16, 16))
    x, y = torch.zeros(1, 256, 1, 16), torch.zeros(1, g.out_size[0] * g.out_size[1], 1, 16)
    with pytest.raises(DataError, match="not a shape"):
        library.call("leanbayes_pool", g.numbers(16), x, y, torch.zeros(y.shape, dtype=torch.int8), 0)
    with pytest.raises(DataError, match="not a shape"):
        library.call("leanbayes_pool_backward", g.numbers(16), y, torch.zeros(y.shape, dtype=torch.int8), x)


@pytest.mark.parametrize(("index", "said"), [([0, 64], "0 to 63"), ([-1, 3], "0 to 63"), ([5, 9, 5], "place twice")])
def test_places_that_are_none_are_refused(index, said):
    with pytest.raises(DataError, match=said):
        plan(geometry.of_linear(4, 16), torch.tensor(index, dtype=torch.int32))
    with pytest.raises(DataError, match="int32"):
        plan(geometry.of_linear(4, 16), torch.tensor([1, 2]))


def test_a_plan_serves_the_parameters_and_sizes_it_was_made_for():
    ready, mu, sigma = linear()
    x = layout.block(torch.randn(4, 16))
    with pytest.raises(DataError, match="means of the nonzeros"):
        sparse.both(x, mu[:-1], sigma, None, ready, 0, 4)
    with pytest.raises(DataError, match="standard deviations"):
        sparse.both(x, mu, sigma[:-1], None, ready, 0, 4)
    with pytest.raises(DataError, match="bias"):
        sparse.both(x, mu, sigma, torch.ones(5), ready, 0, 4)
    with pytest.raises(DataError, match="noise"):
        sparse.both(x, mu, sigma, None, ready, torch.randn(1, 1, 3, 16), 4)
    other, *_ = linear(16, 4)  # tables of the same lengths, of another weight
    with pytest.raises(DataError, match="another weight"):
        sparse._run(layout.block(torch.randn(4, 4)), mu, None, None, None, tuple(order(ready)), other.numbers(4), 0)
    with pytest.raises(DataError, match="elements"):
        sparse._run(x, mu, None, None, None, tuple(order(ready)), ready.numbers(4), 0)


@pytest.mark.parametrize("place", range(15))
@pytest.mark.parametrize("number", [0, -1, 2**31, 2**32 + 1, 2**62, 2**70])
def test_a_geometry_that_makes_no_sense_is_refused(place, number):
    ready, mu, _ = linear()
    numbers = ready.numbers(4)
    if (place, number) in ((7, 0), (8, 0)):
        return  # a padding of 0 is one
    numbers[place] = number
    x = layout.block(torch.randn(4, 16))
    arguments = (numbers, *order(ready), mu, None, x, x[:, :, :4].clone(), None, None, torch.empty(0), None, 0)
    with pytest.raises(LeanBayesError):
        library.call("leanbayes_backward", *arguments, *[None] * 4)
    with pytest.raises(LeanBayesError):
        sparse.gradients(x[:, :, :4], x, mu, None, torch.empty(0), order(ready), numbers, [True] * 3)


def test_other_types_and_orders_are_refused():
    ready, mu, _ = linear()
    x = layout.block(torch.randn(4, 16))
    for wrong in (x.double(), x.to("meta")):
        with pytest.raises(DataError, match="float32 tensors on the CPU"):
            sparse.both(wrong, mu, None, None, ready, 0, 4)
    with pytest.raises(DataError, match="float32 tensors on the CPU"):
        layout.block(torch.randn(4, 16, dtype=torch.float64))
    made, y = norm.Norm(None, None, torch.zeros(8), torch.ones(8), 0.1, True), torch.randn(1, 9, 8, 16)
    with pytest.raises(DataError, match="side by side"):  # written into: a copy would not do
        norm.gradients(y, 16, y, None, False, made, torch.empty(1, 8, 9, 16).transpose(1, 2))
    with pytest.raises(DataError, match="blocks of a tensor"):
        layout.unblock(x, [4, 17])
    with pytest.raises(DataError, match="blocks of a tensor"):
        layout.unblock(x, [33, 16])


def test_negative_views_are_what_they_stand_for():
    ready, mu, _ = linear()
    x = layout.block(torch.randn(4, 16))
    expected, _ = sparse.both(-x, -mu, None, None, ready, 0, 4)
    found, _ = sparse.both(torch._neg_view(x), torch._neg_view(mu), None, None, ready, 0, 4)
    assert torch.equal(found, expected)
    mean = torch.full((64,), 3.0)
    assert torch.equal(perturb(torch._neg_view(mean), torch.zeros(64)), -mean)


def test_an_empty_batch_has_empty_outputs_and_no_gradient():
    ready, mu, sigma = linear()
    x = layout.block(torch.randn(0, 16))
    y, slope = sparse.both(x, mu, sigma, torch.ones(4), ready, 0, 0)
    assert y.shape == (0, 1, 4, 16)
    found = sparse.gradients(y, x, mu, sigma, slope, order(ready), ready.numbers(0), [True] * 3)
    assert [t.shape for t in found] == [(0, 1, 16, 16), (10,), (10,), (4,)]
    assert not any(t.any() for t in found)
    assert layout.unblock(y, [0, 4]).shape == (0, 4)


def test_defaults_of_torch_do_not_matter():
    expected = [t.clone() for t in passed()]
    torch.set_default_dtype(torch.float64)
    try:
        assert all(map(torch.equal, passed(), expected))
        with torch.device("meta"):
            assert all(map(torch.equal, passed(), expected))
    finally:
        torch.set_default_dtype(torch.float32)


def passed():
    """A pass forward and backward on numbers that ask torch for nothing."""
    index = torch.arange(0, 60, 7, dtype=torch.int32, device="cpu")
    values = torch.linspace(-1, 1, len(index), dtype=torch.float32, device="cpu")
    x = layout.block(torch.linspace(-1, 1, 5 * 15, dtype=torch.float32, device="cpu").view(5, 15))
    ready = plan(geometry.of_linear(4, 15), index)
    y, slope = sparse.both(x, values, values.abs(), None, ready, 3, 5)
    made = norm.Norm(None, None, *norm.moments(y, 5), 1e-5, True)
    line, *_ = norm.gradients(y, 5, y, None, False, made, None)
    found = sparse.gradients(y, x, values, values.abs(), slope, order(ready), ready.numbers(5), [True] * 3)
    return [y, slope, norm.finish(y, 5, made, None, True), line, *found, perturb(values, values.abs() * 0)]


def test_a_kernel_of_many_taps_does_not_need_a_deep_stack():
    """A Linear on a flattened image of a million positions has as many taps."""
    positions = 2**20
    ready = plan(geometry.of_linear(1, positions, (1, positions)), torch.tensor([3, positions - 1], dtype=torch.int32))
    x = torch.zeros(1, positions, 1, 16)
    x[0, 3], x[0, -1] = 2.0, 5.0
    y, _ = sparse.both(x, torch.tensor([1.0, 10.0]), None, None, ready, 0, 16)
    assert bool(y.eq(52.0).all())


def test_the_number_of_threads_may_change_at_any_time():
    """Working memory is for the threads of a call, whatever another thread sets meanwhile."""
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=1)
    ready = plan(geometry.of_conv(conv, (9, 9)), torch.randperm(576)[:90].to(torch.int32))
    x, mu, sigma = layout.block(torch.randn(40, 8, 9, 9)), torch.randn(90), torch.rand(90)
    threads, found, stop = torch.get_num_threads(), [], threading.Event()

    def work():
        y, slope = sparse.both(x, mu, sigma, None, ready, 7, 40)
        found.append([y, *sparse.gradients(y, x, mu, sigma, slope, order(ready), ready.numbers(40), [True] * 3)])

    def change():
        for i in range(400):
            torch.set_num_threads(1 + i % 4)
        stop.set()

    try:
        changing = threading.Thread(target=change)
        changing.start()
        while not stop.is_set() or len(found) < 8:
            work()
            torch.set_num_threads(1 + len(found) % 3)
            if len(found) > 50:
                break
        changing.join()
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_call_with_other_arguments_is_refused():
    x = torch.zeros(16)
    with pytest.raises(DataError, match="more or fewer"):
        library.call("leanbayes_perturb", x, x, x.clone())
    with pytest.raises(DataError, match="more or fewer"):
        library.call("leanbayes_perturb", x, x, x.clone(), x.clone(), 1, 2)
    with pytest.raises(DataError, match=r"argument 5, 1\.5: of another type"):
        library.call("leanbayes_perturb", x, x, x.clone(), x.clone(), 1.5)
    with pytest.raises(DataError, match="number of elements"):
        library.call("leanbayes_perturb", x, x[:8], x.clone(), x.clone(), 1)
