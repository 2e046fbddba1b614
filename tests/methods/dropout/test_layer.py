import copy
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import sampling
from leanbayes.errors import PredictionError
from leanbayes.methods.dropout.layer import DropoutAlways, DropoutLayer, DropoutMask


def test_masks_have_mean_one_and_the_variance_of_the_rate():
    n, rate = 200_000, 0.3
    for values in (DropoutMask(rate)(torch.ones(n, 1)), DropoutMask(rate, features=(n,)).noise()):
        assert values.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
        variance = rate / (1 - rate)
        assert abs(values.mean().item() - 1) < 5 * math.sqrt(variance / n)
        assert abs((values == 0).double().mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / n)


def test_every_datum_has_its_own_mask_in_training_and_whole_channels_go():
    y = DropoutMask(0.5, spatial=2)(torch.ones(50, 8, 3, 3))
    assert torch.equal(y.amin((2, 3)), y.amax((2, 3)))
    assert not torch.equal(y[0], y[1])


def test_the_masks_of_a_sample_are_shared_by_the_batch():
    mask = DropoutMask(0.5, features=(8,))
    with lb.using(draws={id(mask): mask.noise()}):
        y = mask(torch.ones(3, 5, 8))
    assert torch.equal(y, y[:1, :1].expand_as(y))


def test_mean_only_and_rate_zero_are_the_identity_whatever_the_mode():
    x = torch.randn(4, 8)
    for mask in (DropoutMask(0.5).train(), DropoutMask(0.5).eval()):
        assert not torch.equal(mask(x), x)
        with lb.using(mean_only=True):
            assert mask(x) is x
    assert DropoutMask(0.0)(x) is x


def test_run_time_shapes_are_learned_while_watching_one_mask_a_shape():
    mask = DropoutMask(0.5)
    with sampling.watching(lambda site: None):
        for shape in ((1, 6), (1, 2, 3), (1, 6)):
            mask(torch.ones(shape))
    assert mask.shapes == [(6,), (2, 3)]
    noise = mask.noise()
    assert noise.shape == (12,)
    with lb.using(draws={id(mask): noise}):
        assert torch.equal(mask(torch.ones(4, 6))[3], noise[:6])
        assert torch.equal(mask(torch.ones(4, 2, 3))[3], noise[6:].reshape(2, 3))
        with pytest.raises(PredictionError, match="received"):
            mask(torch.ones(4, 7))


def test_a_batch_in_dimension_one_takes_a_mask_that_broadcasts():
    mask = DropoutMask(0.5)
    with sampling.watching(lambda site: None):
        mask(torch.ones(5, 1, 8))
    with lb.using(draws={id(mask): mask.noise()}):
        y = mask(torch.ones(5, 3, 8))
    assert torch.equal(y, y[:1, :1].expand_as(y))


@pytest.mark.parametrize(
    ("kind", "shape", "channels"),
    [
        (nn.Dropout, (3, 8), 8),
        (nn.Dropout1d, (3, 4, 5), 4),
        (nn.Dropout2d, (3, 4, 5, 5), 4),
        (nn.Dropout3d, (3, 4, 2, 2, 2), 4),
    ],
)
def test_torchs_own_dropout_modules_drop_what_they_dropped(kind, shape, channels):
    layer = DropoutAlways(kind(0.5), 0.5)
    with sampling.watching(lambda site: None):
        layer(torch.ones(shape))
    assert layer.noise().numel() == channels


def test_restoring_an_own_dropout_gives_its_class_options_and_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25, inplace=True))
    lb.bayesianize_(model, lb.Dropout(0.5))
    assert model[1].rate == 0.5
    model.eval()
    back = lb.restore_(model)[1]
    assert (type(back), back.p, back.inplace, back.training) == (nn.Dropout, 0.25, True, False)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(5, 3), (4, 5)),
        (nn.Conv1d(5, 3, 2), (4, 5, 6)),
        (nn.Conv2d(4, 6, 3, groups=2, padding=1, padding_mode="reflect"), (2, 4, 5, 5)),
        (nn.ConvTranspose2d(5, 3, 2, bias=False), (2, 5, 3, 3)),
    ],
)
def test_a_dropout_layer_is_its_module_on_masked_inputs(module, shape):
    layer, x = DropoutLayer(copy.deepcopy(module), 0.5), torch.randn(shape)
    noise = layer.mask.noise()
    with lb.using(draws={id(layer.mask): noise}):
        assert torch.equal(layer(x), module(x * noise.reshape(-1, *(1,) * (len(shape) - 2))))
    with lb.using(mean_only=True):
        assert torch.equal(layer(x), module(x))
    assert set(layer.state_dict()) == set(module.state_dict())


def test_compiles_as_one_graph():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    lb.bayesianize_(model, lb.Dropout())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert not torch.equal(compiled(torch.ones(3, 4)), compiled(torch.ones(3, 4)))
