"""Fixed values at a few places of a tensor."""

import pytest
import torch

from leanbayes.errors import ConfigError
from leanbayes.posteriors.sparse import SparsePoint, largest


def test_a_point_is_its_value():
    w = torch.tensor([[0.1, -3.0], [2.0, 0.0]], requires_grad=True)
    q = SparsePoint.from_tensor(w, count=2)
    assert torch.equal(q.sample(), q.mean)
    assert torch.equal(q.active_sample(), q.loc)
    assert (q.std == 0).all()
    assert not q.is_site
    assert not q.gaussian
    assert q.active_parameters() == 2
    assert q.loc.requires_grad
    assert not SparsePoint.from_tensor(w.detach(), count=2).loc.requires_grad


def test_bad_counts_are_refused():
    for count in (0, 7, 1.5, True):
        with pytest.raises(ConfigError, match="1 to 6"):
            largest(torch.zeros(2, 3), count)
    with pytest.raises(ConfigError, match="floating"):
        largest(torch.zeros(2, 3, dtype=torch.int32), 1)
