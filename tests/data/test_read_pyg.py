"""Reading datasets of PyG: classes of the user's, every kind of attribute, and what has no flat layout."""

import pytest
import torch
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, Level, unpad
from popgeo.data.read_pyg import why_not_collated
from tests.support.graphs import assert_same_graphs, graph, hetero_graph, same
from tests.support.loaders import InMemory

OPTIONS = FixedSizeOptions(12, 12, 4)


def test_increments_of_a_users_class_are_asked_for(native):
    class LabelPair(Data):
        def __inc__(self, key, value, *args, **kwargs):
            if key == "edge_index_t":
                return self.x_t.size(0)
            return super().__inc__(key, value, *args, **kwargs)

    graphs = [
        LabelPair(x=torch.ones(n, 1), x_t=torch.ones(n + 1, 2), edge_index_t=torch.arange(2 * n).view(2, n) % (n + 1))
        for n in (2, 3)
    ]
    options = FixedSizeOptions(9, 6, 4, num_rows={"x_t": 10})
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    expected = Batch.from_data_list(graphs)
    assert same(batch.edge_index_t[:, :5], expected.edge_index_t)
    assert batch.edge_index_t[:, 5:].tolist() == [[7]] * 2  # the first padding row of x_t
    assert_same_graphs(unpad(batch), graphs)


def test_classes_of_one_name_have_batches_of_their_own():
    def graphs_joined_along(dim):
        class TrimInput(Data):
            def __cat_dim__(self, key, value, *args, **kwargs):
                return dim if key == "image" else super().__cat_dim__(key, value, *args, **kwargs)

        return [TrimInput(x=torch.ones(2, 1), image=torch.rand(2, 2, 3)) for _ in range(2)]

    for dim in (0, 1, 0):
        graphs = graphs_joined_along(dim)
        batch = FixedSizeCollater(FixedSizeOptions(9, 0, 4), add_masks_to_batch=True)(graphs)
        assert batch.image.shape == ((9, 2, 3) if dim == 0 else (2, 9, 3))
        assert_same_graphs(unpad(batch), graphs)


def test_a_users_cat_dim_is_respected(native):
    class Stacked(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return {"image": None, "wide": 1}.get(key, super().__cat_dim__(key, value, *args, **kwargs))

    graphs = [Stacked(x=torch.ones(n, 1), image=torch.rand(2, 3), wide=torch.rand(2, n, 3)) for n in (2, 3)]
    batch = FixedSizeCollater(FixedSizeOptions(9, 0, 4), add_masks_to_batch=True)(graphs)
    assert batch.image.shape == (4, 2, 3)
    assert batch.wide.shape == (2, 9, 3)
    assert same(batch.wide[:, :5], torch.cat([g.wide for g in graphs], dim=1))
    assert_same_graphs(unpad(batch), graphs)


@pytest.mark.parametrize(
    ("graphs", "found"),
    [
        (graph(2, 1), "Expected a list of graphs or a Batch, got Data"),
        ([], "is empty"),
        ([graph(2, 1), "text"], "Item 1 of the dataset is a str"),
        ([graph(2, 1), hetero_graph(1, 1, 1, 1)], r"mixes \['Data', 'HeteroData'\]"),
        ([hetero_graph(1, 1, 1, 1), HeteroData()], "Graph 1 has the node and edge types"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 1), y=1)], r"Graphs 0 and 1 differ in the attributes \['y'\]"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 2))], "'x' cannot be joined along dimension 0"),
        (
            [Data(adj=torch.eye(2).to_sparse(), num_nodes=2)],
            "'adj' holds a torch.sparse_coo tensor, which has no flat layout",
        ),
        ([Data(a=torch.ones(2))], "The number of nodes is unknown"),
    ],
)
def test_what_cannot_be_batched_is_refused(graphs, found):
    with pytest.raises(ValueError, match=found):
        FixedSizeCollater(FixedSizeOptions(9, 9, 4))(graphs)


def test_strings_and_none_and_other_objects_are_carried_along(native):
    graphs = [Data(x=torch.ones(2, 1), smiles="C", tags=["a", None]) for _ in range(2)]
    batch = FixedSizeCollater(OPTIONS, add_masks_to_batch=True)(graphs)
    assert batch.smiles == ["C"] * 4
    assert batch.tags == [["a", None]] * 4
    assert unpad(batch)[1].tags == ["a", None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.uint8])
def test_every_dtype_is_copied_bit_by_bit(dtype, native):
    x = torch.randint(0, 9, (3, 2)).to(dtype)
    batch = FixedSizeCollater(OPTIONS)([Data(x=x), Data(x=x + 1)])
    assert torch.equal(batch.x[:6], torch.cat([x, x + 1]))
    assert not batch.x[6:].any()


def test_features_of_no_width_and_of_many_dimensions(native):
    data = Data(x=torch.ones(2, 0), image=torch.rand(2, 3, 4, 5), num_nodes=2)
    batch = FixedSizeCollater(OPTIONS)([data, data])
    assert batch.x.shape == (12, 0)
    assert torch.equal(batch.image[2:4], data.image)


def test_a_heterogeneous_dataset_in_memory_keeps_what_belongs_to_its_graphs(native):
    graphs = [hetero_graph(2, 3, 4, 1, seed) for seed in range(3)]
    store = FlatStore.from_dataset(InMemory(graphs))
    assert store.level("y") is Level.GRAPH
    assert [a.name for a in store.attributes] == [a.name for a in FlatStore.from_dataset(graphs).attributes]
    batch = FixedSizeCollater(OPTIONS, add_masks_to_batch=True).collate(store, torch.Generator())
    assert_same_graphs(unpad(batch), graphs)


def test_increments_of_a_users_class_are_asked_for_in_a_dataset_in_memory():
    class Shifted(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return 10 if key == "label" else super().__inc__(key, value, *args, **kwargs)

    graphs = [Shifted(x=torch.ones(n, 1), label=torch.zeros(n, dtype=torch.long)) for n in (1, 2)]
    for dataset in (graphs, InMemory(graphs)):
        batch = FixedSizeCollater(FixedSizeOptions(5, 0, 3)).collate(FlatStore.from_dataset(dataset), torch.Generator())
        assert batch.label.tolist() == [0, 10, 10, 20, 20]


def test_a_users_cat_dim_is_respected_in_a_dataset_in_memory():
    class StackedInMemory(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return None if key in ("image", "size") else super().__cat_dim__(key, value, *args, **kwargs)

    graphs = [StackedInMemory(x=torch.ones(n, 1), image=torch.rand(2, 3), size=torch.tensor(n)) for n in (2, 3)]
    store = FlatStore.from_dataset(InMemory(graphs))
    batch = FixedSizeCollater(OPTIONS, add_masks_to_batch=True).collate(store, torch.Generator())
    assert batch.image.shape == (4, 2, 3)
    assert_same_graphs(unpad(batch), graphs)


def test_a_graph_of_a_store_has_the_shapes_that_it_had_before_also_where_graphs_are_stacked():
    class StackedInAStore(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return None if key in ("image", "size") else super().__cat_dim__(key, value, *args, **kwargs)

    graphs = [StackedInAStore(x=torch.ones(n, 1), image=torch.rand(2, 3), size=torch.tensor(n)) for n in (2, 3)]
    for dataset in (graphs, InMemory(graphs)):
        store = FlatStore.from_dataset(dataset)
        assert_same_graphs([store[0], store[1]], graphs)
        assert store[1].image.shape == (2, 3)
        assert store[1]["size"].shape == ()


def test_increments_that_vary_along_the_concatenated_dimension_are_refused():
    class Varying(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return torch.arange(2) if key == "label" else super().__inc__(key, value, *args, **kwargs)

    graphs = [Varying(x=torch.ones(2, 1), label=torch.zeros(2, dtype=torch.long))] * 2
    with pytest.raises(ValueError, match=r"__inc__ of 'label' returns shape \(2,\), which varies along or behind"):
        FlatStore.from_dataset(graphs)


def test_a_dataset_of_any_other_class_is_read_graph_by_graph():
    class Some(Dataset):
        def len(self):
            return 3

        def get(self, idx):
            return graph(idx + 1, idx)

    assert_same_graphs(list(FlatStore.from_dataset(Some())), [graph(n + 1, n) for n in range(3)])


@pytest.mark.parametrize("method", ["get", "__getitem__"])
def test_a_dataset_in_memory_that_makes_its_graphs_in_a_method_of_its_own_is_asked_for_them(method):
    def made(self, index):
        return graph(4, 2, index)

    dataset = type("Made", (InMemory,), {method: made})([graph(3, 1), graph(2, 1)])
    assert why_not_collated(dataset) == "Made makes its graphs in a method that it overrides"
    assert_same_graphs(FlatStore.from_dataset(dataset)[:], [graph(4, 2, 0), graph(4, 2, 1)])


@pytest.mark.parametrize(
    ("graphs", "names"),
    [
        ([graph(3, 4), graph(2, 1, 1)], ["pos", "name", "edge_attr"]),
        ([Data(num_nodes=n, edge_index=torch.zeros(2, 1).long(), y=torch.ones(1)) for n in (2, 3)], ["y"]),
        ([hetero_graph(2, 3, 4, 1, seed) for seed in range(3)], ["edge_attr", "y"]),
    ],
    ids=["one", "stated", "hetero"],
)
def test_attributes_of_a_dataset_in_memory_are_left_out_as_those_of_a_list(graphs, names):
    stores = [FlatStore.from_dataset(dataset, exclude_keys=names) for dataset in (InMemory(graphs), graphs)]
    assert not {attribute.name for attribute in stores[0].attributes} & set(names)
    assert_same_graphs(stores[0][:], stores[1][:])
    assert stores[0].sizes.tolist() == stores[1].sizes.tolist()


def joined(*values):
    """Return the concatenated values of graphs, and the first row of each graph."""
    store = FlatStore.from_dataset([Data(num_nodes=1, note=value) for value in values])
    note = next(attribute for attribute in store.attributes if attribute.name == "note")
    return note.values, store.row_pointers[note.axis]


def test_values_are_joined_as_their_kind_asks():
    rows, starts = joined(1, 2.5, True)
    assert (rows.tolist(), starts.tolist()) == ([1.0, 2.5, 1.0], [0, 1, 2, 3])
    assert joined(1, "two")[0] == [1, "two"]
    assert joined("one", 2)[0] == ["one", 2]
    rows, starts = joined(torch.tensor(4), torch.tensor(5))
    assert (rows.tolist(), starts.tolist()) == ([4, 5], [0, 1, 2])
    rows, starts = joined(torch.zeros(2, 3), torch.ones(4, 3))
    assert (list(rows.shape), starts.tolist()) == ([6, 3], [0, 2, 6])


@pytest.mark.parametrize(
    "values", [(1, torch.tensor([1])), (torch.tensor(1), torch.tensor(2), 3.0), ("a", torch.ones(1))]
)
def test_what_is_a_tensor_in_some_graphs_only_is_refused(values):
    kinds = type(values[0]).__name__, type(values[-1]).__name__
    message = f"'note' is a {kinds[0]} in graph 0 and a {kinds[1]} in graph {len(values) - 1}; it must be a tensor"
    with pytest.raises(ValueError, match=message):
        joined(*values)


def test_one_graph_alone_is_used_where_it_lies():
    x = torch.zeros(3, 2)
    rows, starts = joined(x)
    assert rows.data_ptr() == x.data_ptr()
    assert starts.tolist() == [0, 3]


def test_the_first_graph_of_another_width_is_named():
    with pytest.raises(ValueError, match=r"\[2, 3\] in graph 0 and \[5, 4\] in graph 2"):
        joined(torch.zeros(2, 3), torch.zeros(9, 3), torch.zeros(5, 4), torch.zeros(1, 7))


@pytest.mark.parametrize("value", [{"a": 1}, [torch.zeros(1)], torch.eye(2).to_sparse()])
def test_what_holds_tensors_or_names_has_no_flat_layout(value):
    with pytest.raises(ValueError, match="no flat layout"):
        joined(value)


@pytest.mark.parametrize("value", ["text", [], ["text", None], [[]], [[1, 2], [3]], 4])
def test_plain_objects_are_carried_along(value):
    assert list(joined(value)[0]) == [value]
