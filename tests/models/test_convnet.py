import pytest
import torch

from leanbayes.data import DataSet, load
from leanbayes.errors import ConfigError
from leanbayes.models import build, convnet
from leanbayes.models.for_data import fitting


@pytest.mark.parametrize("size", [2, 3, 8, 28])
def test_shapes(size):
    model = convnet(7, in_channels=3, image_size=size, width=4, hidden=5)
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("size", [0, 1])
def test_an_image_too_small_to_pool_is_refused(size):
    with pytest.raises(ConfigError, match=f"received {size}"):
        convnet(image_size=size)


def data_of(shape, classes, task="classification"):
    names = tuple(map(str, range(classes)))
    return DataSet("made", task, {}, shape, names, torch.zeros(shape[0]), torch.ones(shape[0]))


@pytest.mark.parametrize("name", ["auto", "convnet", "lenet5", "mlp", "resnet18", "resnet18_cifar"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32)])
def test_every_network_fits_images(name, shape):
    chosen = fitting(name, data_of(shape, 5))
    assert build(chosen["name"], **chosen["options"]).eval()(torch.zeros(1, *shape)).shape == (1, 5)


@pytest.mark.parametrize(("side", "name"), [(8, "convnet"), (28, "lenet5"), (32, "resnet18_cifar")])
def test_auto_goes_by_size(side, name):
    assert fitting("auto", data_of((1, side, side), 10))["name"] == name


def test_features_get_a_perceptron():
    data = data_of((6,), 0, "regression")
    assert fitting("auto", data)["options"] == {"in_features": 6, "hidden": [50], "out_features": 1}
    assert fitting("auto", data, 2)["options"]["out_features"] == 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("covnet", load("digits"), "did you mean 'convnet'"),
        ("vit_giant", load("digits"), "package.module:factory"),
        ("convnet", data_of((6,), 2), "choose mlp"),
        ("lenet5", data_of((1, 28, 20), 2), "28x20"),
    ],
)
def test_what_does_not_fit_is_refused(name, data, message):
    with pytest.raises(ConfigError, match=message):
        fitting(name, data)
