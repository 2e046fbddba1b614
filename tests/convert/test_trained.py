"""Whether a network has been trained: fresh ones by any initialisation, old files, partly new ones."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import models
from leanbayes.convert.trained import looks_trained


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("name", ["resnet18_cifar", "vgg11_bn", "mobilenet_v2", "resnext_cifar", "lenet5"])
def test_new_networks_have_not_been(name):
    assert not looks_trained(models.build(name))


def test_statistics_of_data_tell():
    model = models.build("resnet18_cifar", width=4)
    model(torch.randn(2, 3, 32, 32))
    assert looks_trained(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked.zero_()  # as a file of old has it
    assert looks_trained(model)


def test_a_norm_in_a_new_head_does_not_hide_that_the_rest_was_trained():
    body = plain()
    assert not looks_trained(body)
    x = torch.randn(64, 6)
    lb.fit(body, (x, x[:, :3].argmax(1)), epochs=20, lr=0.02, progress=False)
    assert looks_trained(body)
    assert looks_trained(nn.Sequential(body, nn.BatchNorm1d(3), nn.Linear(3, 2)))


def test_members_of_a_new_network_start_afresh_whatever_its_initialisation():
    torch.manual_seed(0)
    model = models.build("resnet18_cifar", width=4)
    lb.bayesianize_(model, lb.Ensemble(2))
    first, second = (member.weight.flatten() for member in model.conv1.members)
    assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 4 / len(first) ** 0.5
