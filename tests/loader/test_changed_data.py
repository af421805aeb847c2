"""Graphs that are edited after a loader has read them: batches never hold the old values without an error."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from popgeo import FixedSizeDataLoader
from popgeo.data import FlatStore


def graphs(count: int = 300) -> list[Data]:
    edge = torch.tensor([[0], [1]])
    return [Data(x=torch.ones(n % 3 + 2, 1), edge_index=edge, y=torch.tensor([float(n)]), tag=n) for n in range(count)]


class StashedValue(InMemoryDataset):
    def __init__(self, items: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(items)


def replace_y(graph):
    graph.y = graph.y / 2


def edit_y(graph):
    graph.y.mul_(3)


def set_number(graph):
    graph.tag = -1


def drop(graph):
    del graph.y


@pytest.mark.parametrize("change", [replace_y, edit_y, set_number, drop])
@pytest.mark.parametrize("wrap", [list, lambda g: Subset(g, range(10)), lambda g: ConcatDataset([g[:50], g[50:]])])
@pytest.mark.parametrize("epochs", [0, 1])
def test_an_edit_of_graphs_is_noticed(change, wrap, epochs):
    items = graphs()
    loader = FixedSizeDataLoader(wrap(items), 8)
    for _ in range(epochs):
        list(loader)
    for graph in items:
        change(graph)
    with pytest.raises(ValueError, match="has changed since the loader read it"):
        next(iter(loader))
    if change is not drop:
        next(iter(FixedSizeDataLoader(wrap(items), 8)))


def test_another_tensor_of_a_dataset_in_memory_is_noticed():
    dataset = StashedValue(graphs())
    loader = FixedSizeDataLoader(dataset, 8)
    list(loader)
    dataset._data.y = dataset._data.y / 2
    with pytest.raises(ValueError, match="'y' of the dataset was replaced"):
        next(iter(loader))


def test_what_is_only_read_or_copied_is_no_change():
    items = graphs()
    loader = FixedSizeDataLoader(items, 8)
    for _ in range(2):
        before = [graph.y.item() for graph in items]
        assert sum(int(batch.graphs_mask.sum()) for batch in loader) == len(before)
    items[0].clone().y.zero_()
    list(loader)


@pytest.mark.parametrize("choices", [{}, {"device": "cpu"}])
@pytest.mark.parametrize("wrap", [list, lambda g: Subset(g, range(10)), StashedValue])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["deep", "pickled"]
)
def test_a_copied_loader_is_one_of_unchanged_data_until_they_change(copied, wrap, choices):
    loader = FixedSizeDataLoader(wrap(graphs()), 4, shuffle=True, seed=0, **choices)
    other = copied(loader)
    assert [batch.y.tolist() for batch in other] == [batch.y.tolist() for batch in loader]
    dataset = other.dataset
    changed = dataset._data if isinstance(dataset, StashedValue) else dataset[0]
    changed.y.mul_(3)
    with pytest.raises(ValueError, match="The dataset has changed since the loader read it: 'y' of"):
        list(other)
    assert len(list(loader)) == len(loader)


def swap_graph(items, n):
    items[n] = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.zeros(1), tag=n)


def add_name(items, n):
    items[n].extra = torch.ones(1)


EDITS = {
    "replaced": lambda items, n: replace_y(items[n]),
    "in place": lambda items, n: edit_y(items[n]),
    "without gradients": lambda items, n: torch.no_grad()(edit_y)(items[n]),
    "number": lambda items, n: set_number(items[n]),
    "dropped": lambda items, n: drop(items[n]),
    "added": add_name,
    "another graph": swap_graph,
}
PLACES = {"x": "another graph", "tag": "number", "extra": "added"}


@pytest.mark.parametrize(
    ("edit", "workers"), [*((one, {}) for one in EDITS), ("in place", {"num_workers": 1, "persistent_workers": True})]
)
def test_an_edit_of_one_graph_among_many_is_named_in_each_kind_of_list(edit, workers):
    place = next((name for name, kind in PLACES.items() if kind == edit), "y")
    for number in (3, 205):
        items = graphs(400)
        whole, half = FixedSizeDataLoader(items, 8, **workers), FixedSizeDataLoader(Subset(items, range(200)), 8)
        joined = FixedSizeDataLoader(ConcatDataset([Subset(items, range(100, 300)), items[300:]]), 8)
        assert len(whole) == len(list(whole)) == len(whole)  # an epoch and the plan of the next
        EDITS[edit](items, number)
        with pytest.raises(ValueError, match=f"'{place}' of graph {number} was replaced or edited.*Make the loader"):
            next(iter(whole))
        for loader, place_in_it in ((half, number if number < 200 else None), (joined, number - 100)):
            if place_in_it is None or place_in_it < 0:
                next(iter(loader))  # it holds none of what was edited
            else:
                with pytest.raises(ValueError, match=f"'{place}' of graph {place_in_it} was"):
                    next(iter(loader))


FED = [{}, {"num_workers": 1}, {"num_buffers": 2}, {"options": 2}]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("choices", FED)
def test_a_loader_that_feeds_a_device_refuses_the_batch_of_an_edited_graph(edit, choices):
    place = next((name for name, kind in PLACES.items() if kind == edit), "y")
    items = graphs(60)
    loader = FixedSizeDataLoader(items, 8, device="cpu", shuffle=True, seed=3, **choices)
    batches, plan = list(loader), loader.plan()
    number, group = int(plan[5][0]), choices.get("options", 1)
    EDITS[edit](items, number)
    found = []
    with pytest.raises(ValueError, match=f"'{place}' of graph {number} was replaced or edited.*Make the loader"):
        found.extend(loader)
    assert len(found) == 5 // group < len(batches)


@pytest.mark.parametrize(
    "wrap",
    [
        list,
        tuple,
        lambda some: Subset(some, [*range(60)][::-1]),
        lambda some: ConcatDataset([some[:9], Subset(some, range(9, 60))]),
    ],
)
def test_a_loader_that_feeds_a_device_checks_the_graphs_of_each_kind_of_list(wrap):
    items = graphs(60)
    dataset = wrap(items)
    loader = FixedSizeDataLoader(dataset, 8, device="cpu")
    whole = [batch.y.tolist() for batch in loader]
    assert [batch.y.tolist() for batch in copy.deepcopy(loader)] == whole
    dataset[50].y.mul_(2)
    found = []
    with pytest.raises(ValueError, match="'y' of graph 50 was"):
        found.extend(batch.y.tolist() for batch in loader)
    assert found == whole[:7]


def test_an_edit_within_an_epoch_is_noticed_by_a_loader_that_feeds_a_device():
    items = graphs(60)
    batches = iter(FixedSizeDataLoader(items, 8, device="cpu"))
    next(batches)
    items[59].y = torch.zeros(1)
    with pytest.raises(ValueError, match="'y' of graph 59 was"):
        list(batches)


@pytest.mark.parametrize("choices", [{}, {"device": "cpu"}])
@pytest.mark.parametrize("other", [None, 3, "text"])
def test_what_takes_the_place_of_a_graph_and_is_none_is_noticed(other, choices):
    items = graphs(20)
    loader = FixedSizeDataLoader(items, 8, **choices)
    list(loader)
    items[9] = other
    with pytest.raises(ValueError, match="of graph 9 was replaced or edited"):
        list(loader)


def set_slices(data):
    data.slices["y"] = data.slices["y"].clone()


def set_order(data):
    data._indices = [*range(len(data))][::-1]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda kept: setattr(kept._data, "y", kept._data.y + 0), "'y' of the dataset was"),
        (lambda kept: kept._data.x.zero_(), "'x' of the dataset was"),
        (lambda kept: kept.slices["y"].add_(0), "'y' of the slices of the dataset was"),
        (set_slices, "'y' of the slices of the dataset was"),
        (set_order, "the order of its graphs was"),
    ],
)
def test_an_edit_of_a_dataset_in_memory_is_named(edit, message):
    kept = StashedValue(graphs(20))
    loaders = [FixedSizeDataLoader(one, 4) for one in (kept, Subset(kept, [3, 4, 5]), ConcatDataset([kept, kept]))]
    for loader in loaders:
        list(loader)
    edit(kept)
    for loader, of in zip(loaders, ("", "", " of part 0"), strict=True):
        in_part = message.replace(" was", f"{of if 'order' not in message else ''} was")
        with pytest.raises(ValueError, match=in_part):
            next(iter(loader))


@pytest.mark.parametrize("wrap", [list, StashedValue, FlatStore.from_dataset])
def test_replaced_numbers_of_a_subset_are_noticed(wrap):
    subset = Subset(wrap(graphs(20)), [1, 2, 3])
    loader = FixedSizeDataLoader(subset, 4)
    list(loader)
    subset.indices[1] = 7
    with pytest.raises(ValueError, match=r"has changed since the loader read it: ('.*' of graph 1|the order of)"):
        next(iter(loader))


def test_equal_numbers_and_lists_are_no_change():
    items = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), tag=0.5, atoms=["C", "O"]) for _ in range(3)]
    loader = FixedSizeDataLoader(items, 4)
    items[1].tag, items[2].atoms = 1 / 2, ["C", "O"]
    next(iter(loader))
    items[2].atoms = ["C", "N"]
    with pytest.raises(ValueError, match="'atoms' of graph 2 was"):
        next(iter(loader))


def test_an_edit_of_one_type_of_a_graph_is_named():
    def one() -> HeteroData:
        data = HeteroData(y=torch.zeros(1))
        data["a"].x, data["b"].x = torch.ones(2, 1), torch.ones(3, 1)
        data["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
        return data

    items = [one() for _ in range(200)]
    loader = FixedSizeDataLoader(items, 4)
    fed = FixedSizeDataLoader(items, 4, device="cpu")
    items[150]["b"].x += 1
    for made in (loader, fed):
        with pytest.raises(ValueError, match="'x' of graph 150 was"):
            list(made)
