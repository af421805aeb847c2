"""nequix trains from tuples of NumPy arrays: its step is traced once, with the losses of jraph's own batches."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

pytest.importorskip("vesin")
from popgeo.convert.periodic_pairs import list_pairs
from popgeo.potentials import nequix

CUTOFF = 4.0


def structure(number, **changes):
    """Return a crystal of 1 to 4 atoms with random labels, as from `read_atoms`."""
    random = np.random.default_rng(number)
    pos, cell = random.random((1 + number % 4, 3)) + 2 * np.eye(4, 3)[: 1 + number % 4], 4.5 * np.eye(3)
    edge_index, shift = list_pairs(pos, cell, np.ones(3, bool), CUTOFF + 1)
    graph = Data(
        z=torch.tensor([13, 29, 29, 13][: len(pos)]),
        pos=torch.tensor(pos, dtype=torch.float32),
        cell=torch.tensor(cell, dtype=torch.float32)[None],
        pbc=torch.ones(1, 3, dtype=torch.bool),
        edge_index=edge_index,
        edge_shift=shift.float(),
        energy=torch.tensor([random.normal()], dtype=torch.float32),
        forces=torch.tensor(random.normal(size=pos.shape), dtype=torch.float32),
        stress=torch.arange(6.0)[None],
    )
    for name, value in changes.items():
        graph[name] = value
    return graph


def loader_of(count=9, **kwargs):
    sizes = {"num_nodes": 16, "num_edges": 400, "batch_size": 6, **kwargs}
    return nequix.fixed_size_loader([structure(number) for number in range(count)], [29, 13], **sizes)


def test_a_batch_has_nequixs_fields_and_one_shape():
    shapes = set()
    for graphs in loader_of(shuffle=True):
        assert (sorted(graphs.nodes), sorted(graphs.edges)) == (["forces", "positions", "species"], ["shifts"])
        assert sorted(graphs.globals) == ["cell", "energy", "stress"]
        assert graphs.n_node.sum() == 16
        assert graphs.n_edge.sum() == 400
        assert {array.dtype for array in (graphs.senders, graphs.n_node, graphs.nodes["species"])} == {
            np.dtype("int32")
        }
        assert graphs.globals["stress"][0].tolist() == [[0, 5, 4], [5, 1, 3], [4, 3, 2]]
        shapes.add(tuple(part.shape for level in graphs[:2] for part in level.values()))
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"z": torch.tensor([92])}, r"Structure 1: it has the atomic numbers \[92\], .* it knows \[13, 29\]"),
        ({"edge_index": None}, "Structure 1: it has no edges"),
        ({"pbc": torch.tensor([[True, True, False]])}, "Structure 1: it has a stress but"),
    ],
    ids=["species", "edges", "cell"],
)
def test_what_nequix_cannot_take_is_refused_with_the_number_of_the_structure(changes, message):
    with pytest.raises(ValueError, match=message):
        nequix.fixed_size_loader([structure(0), structure(4, **changes)], [13, 29], num_nodes=9, num_edges=99)


def test_nequix_has_the_losses_of_jraphs_batches_and_is_traced_once():
    jax = pytest.importorskip("jax")
    jraph = pytest.importorskip("jraph", reason="jraph is not installed")
    model_of = pytest.importorskip("nequix.model", reason="nequix is not installed").Nequix
    loss = pytest.importorskip("nequix.train", reason="nequix's trainer is not installed").loss
    model = model_of(
        jax.random.key(0), n_species=2, lmax=1, cutoff=CUTOFF, hidden_irreps="4x0e+4x1o", n_layers=1, radial_mlp_size=4
    )
    traced = []

    @jax.jit
    def step(graphs):
        traced.append(1)
        return loss(model, graphs, 1.0, 1.0, 1.0)[0]

    for graphs in loader_of():
        real = int(jraph.get_graph_padding_mask(graphs).sum())
        assert real == np.count_nonzero(graphs.globals["cell"].any(axis=(1, 2)))
        alone = jraph.unpad_with_graphs(jraph.GraphsTuple(**graphs._asdict()))
        padded = jraph.pad_with_graphs(alone, 40, 900, real + 1)
        assert float(step(graphs)) == pytest.approx(float(loss(model, padded, 1.0, 1.0, 1.0)[0]), rel=1e-5)
    assert len(traced) == 1
