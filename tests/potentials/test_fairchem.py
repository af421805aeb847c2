"""fairchem's batches at one shape: its models and losses give the same results as on its own batches."""

import numpy as np
import pytest
import torch

ase = pytest.importorskip("ase")
pytest.importorskip("vesin")
pytest.importorskip("fairchem.core", reason="fairchem-core is not installed")

from ase.build import bulk  # noqa: E402
from ase.calculators.emt import EMT  # noqa: E402
from ase.calculators.singlepoint import SinglePointCalculator  # noqa: E402
from fairchem.core.components.common.dataloader_builder import get_dataloader  # noqa: E402
from fairchem.core.datasets.atomic_data import AtomicData, atomicdata_list_to_batch  # noqa: E402
from fairchem.core.models.uma.escn_md import MLP_EFS_Head, eSCNMDBackbone  # noqa: E402
from fairchem.core.modules.loss import DDPMTLoss, L2NormLoss, MAELoss, PerAtomMAELoss  # noqa: E402

from popgeo import FixedSizeBatchSampler, FixedSizeOptions  # noqa: E402
from popgeo.convert import read_atoms  # noqa: E402
from popgeo.potentials import fairchem  # noqa: E402

CUTOFF = 4.0
SIZES = {"num_nodes": 26, "num_edges": 400, "batch_size": 8}


def atoms_of(number):
    """Return crystals, molecules and a lone atom, labelled by EMT."""
    if number % 4 == 3:
        atoms = ase.Atoms("CuAu", [[0, 0, 0], [2.3, 0.1 * number, 0]])[: 1 + (number == 3)]
    else:
        atoms = bulk(["Cu", "Au", "Al"][number % 3], cubic=bool(number % 2))
        atoms.rattle(0.05, seed=number)
    atoms.calc = EMT()
    values = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
    values["stress"] = atoms.get_stress() if atoms.pbc.all() else np.zeros(6)
    atoms.calc = SinglePointCalculator(atoms, **values)
    return atoms


def item(number, dtype=torch.float64):
    return AtomicData.from_ase(atoms_of(number), task_name="omat", sid=str(number), target_dtype=dtype)


def own_batch(loader, numbers):
    """Return fairchem's ragged batch of the same structures, with edges under fairchem's names."""
    items = []
    for number in numbers:
        graph, one = loader.dataset[number], item(number, loader.dataset[0].pos.dtype)
        one.edge_index, one.cell_offsets = graph.edge_index, graph.unit_shift
        one.nedges = torch.tensor([graph.num_edges])
        items.append(one)
    return atomicdata_list_to_batch(items)


class Model(torch.nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = eSCNMDBackbone(
            sphere_channels=4,
            lmax=2,
            mmax=2,
            otf_graph=False,
            cutoff=CUTOFF,
            edge_channels=4,
            num_distance_basis=8,
            direct_forces=False,
            regress_stress=True,
            num_layers=layers,
            hidden_channels=4,
            dataset_mapping={"omat": "omat"},
            always_use_pbc=False,
        )
        self.head = MLP_EFS_Head(self.backbone, wrap_property=False)

    def forward(self, batch):
        return self.head(batch, self.backbone(batch))


def loss_of(model, batch):
    """Compute the loss like fairchem's `compute_loss`, with the mask of finite targets."""
    outputs = model(batch)
    losses = [("energy", PerAtomMAELoss()), ("forces", L2NormLoss()), ("stress", MAELoss())]
    total = 0
    for name, loss in losses:
        target = batch[name].reshape(outputs[name].shape)
        mask = target.isfinite()
        mask = mask.all(dim=1) if name == "forces" else mask
        total = total + DDPMTLoss(loss)(outputs[name], target, mask, batch.natoms)
    return total, outputs


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_energies_forces_stress_losses_and_gradients_are_those_of_fairchems_own_batch(dtype, tolerance):
    loader = fairchem.fixed_size_loader([item(n, dtype) for n in range(8)], cutoff=CUTOFF, **SIZES)
    model = Model().to(dtype)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    shapes = set()
    for batch in loader:
        shapes.add((batch.pos.shape, batch.edge_index.shape, batch.natoms.shape, len(batch.sid)))
        numbers = [int(sid) for sid in batch.sid if sid]
        loss, found = loss_of(model, batch)
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        expected_loss, expected = loss_of(model, own_batch(loader, numbers))
        expected_gradients = torch.autograd.grad(expected_loss, weights, allow_unused=True)
        masks = {"energy": batch.graphs_mask, "forces": batch.nodes_mask, "stress": batch.graphs_mask}
        for name, mask in masks.items():
            torch.testing.assert_close(found[name][mask], expected[name], rtol=tolerance, atol=tolerance)
            assert bool(found[name].isfinite().all())
        torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=tolerance)
        for one, other in zip(gradients, expected_gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert len(shapes) == 1


def test_a_store_of_popgeo_convert_gives_the_batches_of_fairchems_own_items(tmp_path):
    from ase.io import write

    write(tmp_path / "all.extxyz", [atoms_of(n) for n in range(5)])
    read = read_atoms(tmp_path / "all.extxyz", cutoff=CUTOFF, double=True)
    ours, theirs = (
        next(iter(fairchem.fixed_size_loader(items, cutoff=CUTOFF, dataset="omat", **SIZES)))
        for items in (list(read), [item(n) for n in range(5)])
    )
    outputs = [Model().double()(batch) for batch in (ours, theirs)]
    real = ours.graphs_mask
    for name in ("energy", "stress"):
        torch.testing.assert_close(outputs[0][name][real], outputs[1][name][real], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-7, atol=1e-7)


def test_the_batch_is_whole_as_fairchem_checks_it_and_padding_has_no_targets():
    batch = next(iter(fairchem.fixed_size_loader([item(n) for n in range(4)], cutoff=CUTOFF, **SIZES)))
    batch.validate()
    assert batch.natoms.tolist()[:4] == torch.bincount(batch.batch[batch.nodes_mask]).tolist()
    assert int(batch.natoms.min()) >= 1
    assert int(batch.nedges.sum()) == 400
    assert torch.equal(batch.energy.isfinite(), batch.graphs_mask)
    assert torch.equal(batch.forces.isfinite().all(dim=1), batch.nodes_mask)
    assert batch.dataset == ["omat"] * 8
    assert batch.clone().to("cpu").nodes_mask.equal(batch.nodes_mask)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [item(0), atomicdata_list_to_batch([item(1), item(2)])], "Structure 1: it is a batch of 2 structures"),
        (lambda: [item(0), unknown()], "Structure 1: it has the atomic number 101; the model knows 1 to 99"),
        (lambda: [item(1), short_of_edges()], r"Structure 1: its edges reach 2.*missing"),
    ],
    ids=["batch", "species", "cutoff"],
)
def test_what_a_model_cannot_take_is_refused_with_the_number_of_the_structure(make, message):
    with pytest.raises(ValueError, match=message):
        fairchem.fixed_size_loader(make(), cutoff=CUTOFF, **SIZES)


def unknown():
    one = item(1)
    one.atomic_numbers = one.atomic_numbers + 101 - one.atomic_numbers.max()
    return one


def short_of_edges():
    from popgeo.convert.periodic_pairs import list_pairs

    one = item(0)
    one.edge_index, shift = list_pairs(one.pos.numpy(), one.cell[0].numpy(), one.pbc[0].numpy(), 3.0)
    one.cell_offsets = (shift @ torch.linalg.inv(one.cell[0])).round()
    return one


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_a_yaml_of_fairchem_names_the_sampler():
    hydra = pytest.importorskip("hydra.utils")
    config = {
        "_target_": "popgeo.FixedSizeBatchSampler",
        "_partial_": True,
        "fixed_size_options": {"_target_": "popgeo.FixedSizeOptions", "num_nodes": 20, "num_edges": 0, "num_graphs": 9},
    }

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, number):
            return item(number)

        def get_metadata(self, name, numbers):
            return [len(atoms_of(number)) for number in numbers]

    loader = get_dataloader(Items(), hydra.instantiate(config), atomicdata_list_to_batch, num_workers=0)
    seen = [sid for batch in loader for sid in batch.sid]
    assert sorted(map(int, seen)) == list(range(12))
    assert FixedSizeBatchSampler([3], fixed_size_options=FixedSizeOptions(4, 0, 2)).num_skipped == 0
