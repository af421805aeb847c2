"""Equal calls are captured once, in any order of arguments and with or without their defaults."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo.ipu import compile


def test_a_dictionary_is_read_by_its_keys_in_any_order():
    difference = compile(lambda d: d["a"] - d["b"], [{"a": torch.ones(2), "b": torch.zeros(2)}])
    assert difference({"b": torch.full((2,), 5.0), "a": torch.full((2,), 7.0)}).tolist() == [2, 2]


def test_nested_dictionaries_and_graph_data_likewise():
    def function(d):
        return d["graphs"]["one"].x - d["graphs"]["two"].pos, d

    x, pos = torch.ones(2), torch.zeros(2)
    step = compile(function, [{"graphs": {"one": Data(x=x, pos=pos, name="one"), "two": Data(x=x, pos=pos)}}])
    two, one = Data(pos=3 * x, x=pos), Data(pos=pos, name="first", x=7 * x)
    difference, result = step({"graphs": {"two": two, "one": one}})
    assert difference.tolist() == [4, 4]
    assert result["graphs"]["one"].name == "first"
    assert (result["graphs"]["one"].x.tolist(), result["graphs"]["two"].pos.tolist()) == ([7, 7], [3, 3])


def test_other_keys_are_refused_by_name():
    step = compile(lambda d: d["a"], [{"a": torch.ones(2)}])
    with pytest.raises(ValueError, match=r"`d\['a'\]` is absent"):
        step({"c": torch.ones(2)})


def scale(x, factor=2, offset=None, act=torch.relu, *, bias=0.0):
    return act(x * factor + bias) if offset is None else act(x * factor + offset)


CALLS = [((), {}), ((2,), {}), ((2, None), {}), ((), {"bias": 0.0}), ((), {"act": torch.relu, "factor": 2})]


@pytest.mark.parametrize("example", [(), (2,), (2, None, torch.relu)])
def test_a_default_may_be_named_in_one_call_and_left_out_in_another(example):
    step = compile(scale, [torch.ones(2), *example])
    for args, kwargs in CALLS:
        assert step(torch.ones(2), *args, **kwargs).tolist() == [2, 2]


def test_another_value_than_the_default_is_refused_by_both_values():
    step = compile(scale, [torch.ones(2)])
    with pytest.raises(ValueError, match="`factor` is 3, but the model was compiled for 2"):
        step(torch.ones(2), 3)
    with pytest.raises(ValueError, match=r"`offset` is float32.*compiled for None"):
        step(torch.ones(2), offset=torch.ones(2))
    with pytest.raises(ValueError, match="`factor` is 2, but the model was compiled for 3"):
        compile(scale, [torch.ones(2), 3])(torch.ones(2))
