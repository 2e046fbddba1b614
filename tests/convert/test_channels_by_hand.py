"""Channel groups that are written down by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from leanbayes.convert.channels import ChannelGraph, Use, channel_graph
from leanbayes.errors import ConversionError

from .networks import IMAGE, conv


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"producers": []}, "at least one producer"),
        ({"producers": ["9"]}, "no module '9'"),
        ({"producers": ["1"]}, "'1', a ReLU, cannot be among its producers"),
        ({"producers": ["0"], "feeds": ["2"]}, "unknown key 'feeds'"),
        ({"producers": ["0"], "consumers": ["3"]}, "4 channels do not fit the 6 features of '3'"),
        ({"producers": ["0"], "consumers": [Use("2", offset=1)]}, "do not fit"),
        ({"producers": ["0"], "size": 0}, "expected a size of 1 or more"),
        ({"producers": [Use("4")], "size": 2}, "the 3 groups of '4' cut across"),
        ({"producers": ["2"], "consumers": ["5"]}, "'5' is depthwise; name it under 'through'"),
        ({"producers": ["2"], "through": ["4"]}, "'4', a Conv2d, cannot be among its through"),
    ],
)
def test_groups_by_hand_are_checked(roles: dict[str, Any], message: str) -> None:
    model = nn.Sequential(
        conv(3, 4), nn.ReLU(), conv(4, 6), nn.BatchNorm2d(6), conv(6, 6, groups=3), conv(6, 6, groups=6)
    )
    if "consumers" in roles and roles["consumers"] == ["3"]:
        model[3] = conv(6, 6)
    with pytest.raises(ConversionError, match=message):
        ChannelGraph.from_groups(model, {"hidden": roles})


def test_groups_by_hand_do_not_overlap() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 2))
    groups = {"a": {"producers": ["0"], "consumers": ["2"]}, "b": {"producers": ["1"], "consumers": ["2"]}}
    with pytest.raises(ConversionError, match=r"groups 'a' and 'b' both have feature 0 of '2' among their consumers"):
        ChannelGraph.from_groups(model, groups)


def test_groups_by_hand_equal_those_found() -> None:
    model = nn.Sequential(conv(3, 4), nn.GroupNorm(2, 4), conv(4, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 2))
    found = channel_graph(model, torch.rand(IMAGE))
    by_hand = ChannelGraph.from_groups(
        model,
        {
            "0": {"producers": ["0"], "through": [Use("1")], "consumers": ["2"]},
            "2": {"producers": ["2"], "consumers": ["5"]},
        },
    )
    assert by_hand["2"] == found["2"]
    assert by_hand["0"].constraints == found["0"].constraints
    assert (by_hand["0"].producers, by_hand["0"].consumers) == (found["0"].producers, found["0"].consumers)
