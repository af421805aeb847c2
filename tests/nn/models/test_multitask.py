"""Claims about many tasks on one trunk: NaN labels and padding do not count, and heads share the trunk."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import Batch, Data

from popgeo import ipu
from popgeo.data import FixedSizeOptions
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import GCN, GIN, GINE, Multitask, Task, binary_cross_entropy, l1_loss, mse_loss
from popgeo.testing import check_padding_invariance, check_static_capture

TASKS = (
    Task(name="energy", num_labels=2),
    Task(name="toxic", num_labels=3, loss=binary_cross_entropy, weight=0.5),
    Task(name="charge", num_labels=1, level="node", loss=mse_loss),
)


def model(trunk: type[nn.Module] = GINE) -> Multitask:
    torch.manual_seed(0)
    return Multitask(trunk(3, 8, 2, **({"edge_dim": 2} if trunk is GINE else {})), 8, TASKS)


def molecule(size: int) -> Data:
    generator = torch.Generator().manual_seed(size)
    ring = torch.arange(size)
    data = Data(
        x=torch.randn(size, 3, generator=generator),
        edge_index=torch.stack([ring, (ring + 1) % size]),
        edge_attr=torch.randn(size, 2, generator=generator),
        energy=torch.randn(1, 2, generator=generator),
        toxic=torch.randint(0, 2, (1, 3), generator=generator).float(),
        charge=torch.randn(size, 1, generator=generator),
    )
    data.energy[0, size % 2] = torch.nan
    if size % 3:
        data.toxic[:] = torch.nan
    else:
        data.charge[:] = torch.nan
    return data


MOLECULES = [molecule(size) for size in (3, 4, 5, 6, 7)]


def call(multitask: Multitask, batch: Batch) -> dict[str, Tensor]:
    attributes = {"edge_attr": batch.edge_attr} if isinstance(multitask.trunk, GINE) else {}
    masks = {name: batch[name] for name in ("nodes_mask", "edges_mask") if name in batch}
    return multitask(batch.x, batch.edge_index, batch=batch.batch, num_graphs=batch.num_graphs, **attributes, **masks)


def loss(out: dict[str, Tensor], batch: Batch, multitask: Multitask) -> Tensor:
    labels = {task.name: batch[task.name] for task in TASKS}
    return multitask.losses(out, labels, *(batch[name] for name in ("nodes_mask", "graphs_mask") if name in batch))[0]


def test_the_loss_is_the_weighted_sum_of_the_means_over_known_labels():
    multitask, batch = model(), Batch.from_data_list(MOLECULES)
    out = call(multitask, batch)
    total, each = multitask.losses(out, {task.name: batch[task.name] for task in TASKS})
    known = {name: ~batch[name].isnan() for name in out}
    assert 0 < known["toxic"].sum() < known["toxic"].numel()
    expected = {
        "energy": l1_loss(out["energy"][known["energy"]], batch.energy[known["energy"]]),
        "toxic": nn.functional.binary_cross_entropy_with_logits(
            out["toxic"][known["toxic"]], batch.toxic[known["toxic"]]
        ),
        "charge": mse_loss(out["charge"][known["charge"]], batch.charge[known["charge"]]),
    }
    assert_close(each, expected)
    assert_close(total, expected["energy"] + 0.5 * expected["toxic"] + expected["charge"])


@pytest.mark.parametrize("trunk", [GINE, GIN, GCN])
def test_padding_and_neighbors_change_no_prediction_loss_or_gradient(trunk: type[nn.Module]):
    multitask = model(trunk).double()
    doubled = [data.clone().apply(lambda t: t.double() if t.is_floating_point() else t) for data in MOLECULES[:3]]
    check_padding_invariance(
        multitask,
        doubled,
        call=call,
        loss=lambda out, batch: loss(out, batch, multitask),
    )


def test_a_compiled_step_on_a_mixed_pack_is_static_and_equals_eager():
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.multitask = model()

        def forward(self, batch: Batch) -> Tensor:
            return loss(call(self.multitask, batch), batch, self.multitask)

    (batch, *_) = FixedSizeDataLoader(
        MOLECULES, fixed_size_options=FixedSizeOptions(32, 32, 7), levels={"energy": "graph", "toxic": "graph"}
    )
    check_static_capture(Step(), batch)
    # What is known differs from batch to batch, but not the program.
    training = ipu.training_model(Step(), ipu.Options(show_progress=False))
    first = training(batch)
    batch.energy = torch.full_like(batch.energy, torch.nan)
    assert training(batch) < first
    assert training(batch).isfinite()


@pytest.mark.parametrize(("trunk", "reference"), [(GIN, pyg.GIN), (GCN, pyg.GCN)])
def test_a_trunk_takes_a_checkpoint_of_pyg(trunk: type[nn.Module], reference: type[nn.Module]):
    multitask, theirs, data = model(trunk), reference(3, 8, 2), MOLECULES[0]
    multitask.trunk.load_state_dict(theirs.state_dict())
    nodes = theirs(data.x, data.edge_index)
    out = multitask(data.x, data.edge_index, batch=torch.zeros(3, dtype=torch.long), num_graphs=1)
    assert_close(out["charge"], multitask.heads["charge"](nodes))
    assert_close(out["energy"], multitask.heads["energy"](nodes.mean(0, keepdim=True)))


def test_a_task_without_a_label_in_the_batch_moves_no_weight():
    multitask, batch = model(), Batch.from_data_list(MOLECULES[1:2])  # four atoms: nothing is known of toxicity
    total = loss(call(multitask, batch), batch, multitask)
    slopes = torch.autograd.grad(total, list(multitask.heads["toxic"].parameters()))
    assert all((slope == 0).all() for slope in slopes)
    assert total.isfinite()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Task(name="a", num_labels=0), "num_labels is 0; .* Task 'a'"),
        (lambda: Task(name="a", num_labels=1, level="edge"), "level of task 'a' is 'edge'"),
        (lambda: Task(name="a", num_labels=1, weight=0.0), "must be positive"),
        (lambda: Multitask(nn.Identity(), 1, [TASKS[0], TASKS[0]]), "no two of one name"),
        (lambda: Multitask(nn.Identity(), 1, TASKS, readout="median"), "readout is 'median'"),
        (lambda: Multitask(GIN(3, 8, 2, readout="add"), 8, TASKS), "trunk has a readout"),
        (lambda: model().losses({}, {}), "Task 'energy' has no labels"),
        (lambda: model().losses({"energy": torch.ones(2, 2)}, {"energy": torch.ones(4)}), r"must be \(2, 2\)"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
