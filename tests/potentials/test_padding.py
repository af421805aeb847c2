"""The contract of batches for potentials, before a framework renames attributes."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from popgeo.potentials.padding import (
    PotentialLoader,
    Structures,
    slots_per_real,
    unpad_outputs,
)

CUTOFF, SIZES = 3.0, ((1, 0), (3, 6), (2, 2), (5, 11), (3, 3), (7, 20))


def structure(num_atoms: int, num_edges: int) -> Data:
    """Return a structure with arbitrary numbers; some have three atoms, as many as a cell has rows."""
    return Data(
        z=torch.arange(num_atoms) % 2,
        pos=torch.randn(num_atoms, 3),
        cell=9 * torch.eye(3)[None],
        pbc=torch.zeros(1, 3, dtype=torch.bool),
        edge_index=torch.randint(0, num_atoms, (2, num_edges)),
        unit_shift=torch.zeros(num_edges, 3),
        edge_shift=torch.zeros(num_edges, 3),
        energy=torch.randn(1),
        forces=torch.randn(num_atoms, 3),
    )


def loader(graphs: object = None, **kwargs: object) -> PotentialLoader:
    sizes = {"num_nodes": 16, "num_edges": 30, "batch_size": 5, **kwargs}
    levels = {"energy": "graph", "forces": "node"}
    graphs = graphs if graphs is not None else [structure(*size) for size in SIZES]
    return PotentialLoader(graphs, lambda batch: batch, cutoff=CUTOFF, species=2, levels=levels, **sizes)


@pytest.mark.parametrize("strategy", ["Window", "StreamPack", "PadToMax"])
def test_the_padding_of_every_batch_is_physically_safe(strategy: str) -> None:
    for batch in loader(num_nodes=40, num_edges=60, shuffle=True, fixed_size_strategy=strategy):
        nodes, edges, graphs = ~batch.nodes_mask, ~batch.edges_mask, ~batch.graphs_mask
        assert (batch.z[nodes] == 2).all()
        counts = batch.ptr.diff()
        assert (counts == torch.bincount(batch.batch, minlength=5)).all()
        assert (counts[graphs] >= 1).all()
        assert nodes[batch.edge_index[:, edges]].all()
        vectors = (batch.pos[batch.edge_index[1]] - batch.pos[batch.edge_index[0]] + batch.edge_shift)[edges]
        assert (vectors.norm(dim=1) > CUTOFF).all()
        cells = batch.cell[batch.batch[batch.edge_index[0, edges]]]
        assert torch.equal(torch.einsum("ei,eij->ej", batch.unit_shift[edges], cells), batch.edge_shift[edges])
        assert (torch.linalg.det(batch.cell) > 0).all()
        assert not batch.energy[graphs].any()
        assert not batch.forces[nodes].any()


def test_real_rows_are_those_of_a_ragged_batch() -> None:
    graphs = [structure(*size) for size in SIZES]
    made = loader(graphs, shuffle=False, fixed_size_strategy="StreamPack")
    for batch, ids in zip(made, made.plan(), strict=True):
        ragged = Batch.from_data_list([graphs[i] for i in ids.tolist()])
        masks = {"node": batch.nodes_mask, "edge": batch.edges_mask, "graph": batch.graphs_mask}
        for name, level in {"z": "node", "forces": "node", "unit_shift": "edge", "cell": "graph"}.items():
            assert torch.equal(batch[name][masks[level]], ragged[name])
        assert torch.equal(batch.edge_index[:, batch.edges_mask], ragged.edge_index)
        assert torch.equal(batch.batch[batch.nodes_mask], ragged.batch)


def test_a_batch_has_room_for_an_atom_of_every_padding_structure() -> None:
    ones = [structure(1, 0) for _ in range(3)]
    (batch,) = loader(ones, num_nodes=6, num_edges=4, batch_size=4)
    assert batch.ptr.tolist() == [0, 1, 2, 3, 6]
    with pytest.raises(ValueError, match="Graph 1 has 4 nodes, a batch holds 3 real ones"):
        loader([structure(1, 0), structure(4, 2)], num_nodes=6, num_edges=4, batch_size=4).plan()


def test_sizes_are_found_where_none_are_given() -> None:
    for strategy in ("Window", "PadToMax"):
        made = loader(num_nodes=None, num_edges=None, batch_size=3, fixed_size_strategy=strategy)
        assert sum(int(batch.graphs_mask.sum()) for batch in made) == len(SIZES)


def test_a_fault_of_an_item_is_told_with_its_number() -> None:
    def refuse(item: int) -> Data:
        if item:
            raise ValueError("its species 8 is unknown.")
        return structure(2, 2)

    with pytest.raises(ValueError, match="Structure 3: its species 8 is unknown"):
        Structures([0, 0, 0, 1], refuse).in_memory()
    with pytest.raises(ValueError, match="no structures"):
        Structures([], refuse)


def test_a_batch_that_would_be_padding_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 1, but one structure of a batch is padding"):
        loader(num_nodes=None, num_edges=None, batch_size=1)


def test_outputs_lose_their_padding_and_doubtful_ones_are_asked_about() -> None:
    masks = {"nodes_mask": torch.tensor([True, False]), "graphs_mask": torch.tensor([False, False])}
    with pytest.raises(ValueError, match="'energy' has 2 rows, which fits nodes and graphs"):
        unpad_outputs({"energy": torch.zeros(2)}, masks)
    assert len(unpad_outputs({"energy": torch.zeros(2)}, masks, {"energy": "node"})["energy"]) == 1
    assert unpad_outputs({"hessian": None, "r_max": torch.zeros(7)}, masks)["r_max"].shape == (7,)


def test_a_mean_in_double_precision_is_not_multiplied_by_a_rounded_number() -> None:
    mask = torch.tensor([True, True, True, False])
    assert float(slots_per_real(mask, torch.float64)) == 4 / 3
    assert slots_per_real(mask).dtype is torch.float32
