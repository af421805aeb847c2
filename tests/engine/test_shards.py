"""Models in shards: the number of shards, models that may be trained here, and a model of the first shards."""

import pytest
import torch
from torch import nn

from popgeo.engine.shards import num_shards, only_first, require_all


class Cut(nn.Module):
    """A module with one weight sharded in its first dimension and one in its second."""

    def __init__(self, num_shards: int, num_local: int) -> None:
        super().__init__()
        self.num_shards, self.num_local = num_shards, num_local
        self.rows = nn.Parameter(torch.arange(num_local * 6.0).view(num_local, 2, 3))
        self.grid = nn.Parameter(torch.ones(num_local, num_local, 2))
        self.whole = nn.Parameter(torch.ones(5))

    def local_parts(self, num_local: int) -> dict[str, tuple[int, ...]]:
        return {"rows": (num_local,), "grid": (num_local, num_local)}


def test_the_number_of_shards_is_that_of_the_layers_or_one():
    assert num_shards(nn.Linear(2, 2)) == 1
    assert num_shards(lambda x: x) == 1
    assert num_shards(nn.Sequential(Cut(4, 4), nn.Linear(2, 2), Cut(4, 2))) == 4
    with pytest.raises(
        ValueError, match=r"different numbers of shards, 1 in 2 and 0 in 4. Give all layers the same number"
    ):
        num_shards(nn.Sequential(Cut(4, 4), Cut(2, 2)))


def test_a_model_that_holds_only_some_of_its_shards_is_not_trained_here():
    require_all(nn.Sequential(Cut(4, 4), nn.Linear(2, 2)))
    require_all(lambda x: x)
    with pytest.raises(ValueError, match=r"1 holds 3 of its 4 shards; other processes hold the rest"):
        require_all(nn.Sequential(Cut(4, 4), Cut(4, 3)))


def test_a_model_has_its_first_shards_meanwhile_and_all_of_them_afterwards_and_after_an_error():
    model = nn.Sequential(Cut(4, 4), Cut(4, 4))
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def look_and_fail() -> None:
        with only_first(model, 2):
            for layer in model:
                assert [p.shape for p in layer.parameters()] == [(2, 2, 3), (2, 2, 2), (5,)]
                assert torch.equal(layer.rows.detach(), torch.arange(12.0).view(2, 2, 3))
            assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        look_and_fail()
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    with only_first(lambda x: x, 1):
        pass
