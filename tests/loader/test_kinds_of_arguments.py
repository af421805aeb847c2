"""Arguments of a wrong kind are refused by their name, with the allowed kind."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.nn import GCN, GIN, PaiNN, SchNet

GRAPHS = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 4)]
WHOLE = "it must be a whole number"


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        *(({"batch_size": size}, f"batch_size is {size!r}; {WHOLE}") for size in (8.0, "8", True)),
        ({"batch_size": 2, "seed": "a"}, f"seed is 'a'; {WHOLE}"),
        ({"batch_size": 2, "seed": 1.5}, f"seed is 1.5; {WHOLE}"),
        ({"batch_size": 2, "num_workers": "2"}, f"num_workers is '2'; {WHOLE}"),
        ({"batch_size": 2, "shuffle": "yes"}, "shuffle is 'yes'; it must be True or False"),
        ({"batch_size": 2, "sampler": "random"}, "which each epoch reads again. For random order pass shuffle"),
        ({"batch_size": 2, "sampler": iter([0, 1])}, "which each epoch reads again"),
        ({"batch_size": 2, "batch_sampler": iter([[0], [1]])}, "which each epoch reads again"),
    ],
)
def test_a_loader_names_the_argument(choices, words):
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        FixedSizeDataLoader(GRAPHS, **choices)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"shuffle": True, "seed": -1}, "A seed is -1; it must be 0 or more"),
        ({"batch_sampler": [0, 1]}, "Each batch is a list of graph numbers"),
    ],
)
def test_an_epoch_that_cannot_be_made_says_why(choices, words):
    with pytest.raises(ValueError, match=words):
        list(FixedSizeDataLoader(GRAPHS, 2, **choices))


def test_a_seed_may_be_a_tensor():
    first, second = (FixedSizeDataLoader(GRAPHS, 2, shuffle=True, seed=seed) for seed in (3, torch.tensor(3)))
    assert [batch.x.tolist() for batch in first] == [batch.x.tolist() for batch in second]


def test_a_loader_refuses_one_graph_and_a_strange_state():
    with pytest.raises(ValueError, match="The dataset is one Data; pass a list"):
        FixedSizeDataLoader(GRAPHS[0], 8)
    with pytest.raises(ValueError, match=r"The state has \['a'\] and no epoch"):
        FixedSizeDataLoader(GRAPHS, 2).load_state_dict({"a": 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedSizeOptions("40", 32),
        lambda: FixedSizeOptions(40.0, 32),
        lambda: FixedSizeOptions(40, 32, 2.5),
        lambda: SchNet(64.0, 64),
        lambda: PaiNN("8"),
        lambda: GIN(4.0, 8, 2),
        lambda: GIN(4, 8, 2.0),
        lambda: GCN(4, hidden_channels="8", num_layers=2),
    ],
)
def test_sizes_are_whole_numbers(make):
    with pytest.raises(ValueError, match=WHOLE):
        make()


def test_numpy_arrays_are_named():
    with pytest.raises(ValueError, match=r"Attribute 'x' is a ndarray.*torch\.as_tensor"):
        FixedSizeDataLoader([Data(x=torch.ones(2, 1).numpy(), edge_index=torch.tensor([[0], [1]]))], 2)
