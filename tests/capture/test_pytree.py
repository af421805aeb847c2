"""Any nest of arguments is split and put together again; a path names the first difference of two nests."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from popgeo.capture.pytree import flatten, note_likeness, unflatten
from popgeo.capture.structures import describe, first_difference, leaves, same, templates


class LabelPair(NamedTuple):
    first: Any
    second: Any


def water(**changed: Any) -> Data:
    parts = {"z": torch.tensor([8, 1, 1]), "edge_index": torch.tensor([[0, 0], [1, 2]]), "name": "water", "charge": 0}
    return Data(**parts | changed)


def test_tensors_come_in_the_order_in_which_a_reader_meets_them():
    a, b, c, d = (torch.full((k,), float(k)) for k in range(4))
    tensors, structure = flatten({"b": [a, (b, "text")], "a": LabelPair(first=c, second={"x": d})})
    assert [id(tensor) for tensor in tensors] == [id(a), id(b), id(c), id(d)]
    assert [path for path, _ in leaves(structure)] == ["b[0]", "b[1][0]", "a.first", "a.second['x']"]
    again = unflatten(structure, ["A", "B", "C", "D"])
    assert again == {"b": ["A", ("B", "text")], "a": LabelPair("C", {"x": "D"})}
    assert isinstance(again["a"], LabelPair)


LEAVES = st.one_of(
    st.integers(-3, 3),
    st.text(max_size=2),
    st.none(),
    st.tuples(st.integers(0, 2)).map(lambda shape: torch.zeros(shape)),
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
        st.builds(LabelPair, inner, inner),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(NESTS)
def test_what_is_put_together_again_is_what_was_taken_apart(tree):
    tensors, structure = flatten(tree)
    again, other = flatten(unflatten(structure, tensors))
    assert list(map(id, again)) == list(map(id, tensors))
    assert same(structure, other)
    assert [type(part) for part in _leaves(tree)] == [type(part) for part in _leaves(unflatten(structure, tensors))]


def _leaves(tree: Any) -> list[Any]:
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return [tree, *(leaf for part in parts for leaf in _leaves(part))]


def test_graph_data_comes_back_as_another_object_with_all_that_is_no_tensor():
    given_data = water()
    tensors, structure = flatten(given_data)
    again = unflatten(structure, [2 * tensor for tensor in tensors])
    assert templates(structure) == [given_data]
    assert type(again) is Data
    assert (again.name, again.charge, again.z.tolist()) == ("water", 0, [16, 2, 2])
    assert given_data.z.tolist() == [8, 1, 1]


def test_stores_of_one_name_stay_apart_in_heterogeneous_data():
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.ones(2, 1), torch.ones(3, 1)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    tensors, structure = flatten(data)
    again = unflatten(structure, [tensor + k for k, tensor in enumerate(tensors)])
    assert again["author"].x.flatten().tolist() == [1, 1]
    assert again["paper"].x.flatten().tolist() == [2, 2, 2]
    assert again["author", "writes", "paper"].edge_index.tolist() == [[2, 3], [4, 2]]
    assert "['author'].x" in dict(describe(structure))


def test_a_result_takes_what_is_no_tensor_from_the_argument_that_it_is_like():
    argument, result = water(), water(z=torch.zeros(3))
    results = note_likeness(flatten((result,))[1], [argument])
    (made,) = unflatten(results, [torch.zeros(2, 2), torch.ones(3)], [water(name="heavy water")])
    assert (made.name, made.z.tolist()) == ("heavy water", [1, 1, 1])
    unlike = note_likeness(flatten((water(extra="text"),))[1], [argument])
    (made,) = unflatten(unlike, [torch.zeros(2, 2), torch.ones(3)], [water(name="heavy water")])
    assert (made.name, made.extra) == ("water", "text")


OTHER = {
    "a shape": (torch.zeros(2), torch.zeros(3), "`x` is float32[3], but the model was compiled for float32[2]"),
    "a type": (torch.zeros(2), torch.zeros(2).int(), "`x` is int32[2], but the model was compiled for float32[2]"),
    "a number": (2, 3, "`x` is 3, but the model was compiled for 2"),
    "a kind of number": (1, True, "`x` is True, but the model was compiled for 1"),
    "a container": ([1], (1,), "`x` is tuple of 1, but the model was compiled for list of 1"),
    "a length": ([1], [1, 2], "`x` is list of 2, but the model was compiled for list of 1"),
    "an attribute": (water(), water(charge=1), "`x.charge` is 1, but the model was compiled for 0"),
    "an attribute more": (water(), water(y=1.5), "`x` is Data of 4, but the model was compiled for Data of 3"),
    "an object": (object, torch.nn.Module(), "`x` is Module(), but the model was compiled for <class 'object'>"),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_nest_that_differs_is_told_apart_and_the_difference_is_named(what):
    one, other, sentence = OTHER[what]
    compiled, given_now = flatten({"x": one})[1], flatten({"x": other})[1]
    assert same(compiled, flatten({"x": one})[1])
    assert not same(compiled, given_now)
    assert not same(given_now, compiled)
    assert first_difference(compiled, given_now) == sentence


def test_other_values_in_tensors_and_other_names_of_graphs_make_no_difference():
    one = [water(), torch.zeros(2)]
    other = [water(name="heavy water", z=torch.zeros(3).long()), torch.ones(2)]
    assert same(flatten(one)[1], flatten(other)[1])
