"""SchNetPack, the real package, with random weights on structures of EMT: fixed shape changes nothing but the time."""

import typing
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import dataloader

import popgeo
from popgeo.nn import filter_grid
from popgeo.potentials.evaluator import SystemsCalculator
from tests.support.calculators import require_the_same
from tests.support.metals import metals

ase = pytest.importorskip("ase")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if not hasattr(dataloader, "T_co"):
        dataloader.T_co = typing.TypeVar(
            "T_co", covariant=True
        )  # SchNetPack 2.1 imports it, and torch has it no longer
    spk = pytest.importorskip("schnetpack", reason="needs schnetpack")
    import pytorch_lightning as lightning
    import torchmetrics
    from schnetpack.data.loader import _atoms_collate_fn
    from schnetpack.transform import ASENeighborList

    from popgeo.potentials.schnetpack import (
        FixedSizeTask,
        TaskStep,
        evaluator,
        fixed_size_loader,
        in_one_pass,
        of_real,
        use_fixed_sizes,
    )

pytestmark = pytest.mark.filterwarnings("ignore")
CUTOFF = 4.0
SIZES = {"num_nodes": 40, "num_edges": 700, "batch_size": 6, "cutoff": CUTOFF}
NAMES = ("energy", "forces", "stress")


def items(cutoff=CUTOFF, number=12, dtype=torch.float64):
    made = []
    for place, atoms in enumerate(metals(number, keep=True)):
        results = atoms.calc.results
        stress = ase.stress.voigt_6_to_full_3x3_stress(results["stress"])
        item = {
            "_idx": torch.tensor([place]),
            "_n_atoms": torch.tensor([len(atoms)]),
            "_atomic_numbers": torch.tensor(atoms.numbers),
            "_positions": torch.tensor(atoms.positions),
            "_cell": torch.tensor(atoms.cell.array if atoms.pbc.all() else 30 * np.eye(3))[None],  # it has a volume
            "_pbc": torch.tensor(atoms.pbc),
            "energy": torch.tensor([results["energy"]]),
            "forces": torch.tensor(results["forces"]),
            "stress": torch.tensor(np.nan_to_num(stress))[None],
        }
        item = {name: value.to(dtype) if value.is_floating_point() else value for name, value in item.items()}
        made.append(ASENeighborList(cutoff)(item))
    return made


def potential(kind="SchNet", stress=False, **choices):
    torch.manual_seed(0)
    choices = {"cutoff_fn": spk.nn.CosineCutoff(CUTOFF), **choices}
    radial = spk.nn.GaussianRBF(n_rbf=6, cutoff=CUTOFF)
    representation = getattr(spk.representation, kind)(8, 2, radial_basis=radial, **choices)
    strain = [spk.atomistic.Strain()] if stress else []
    return spk.model.NeuralNetworkPotential(
        representation,
        input_modules=[*strain, spk.atomistic.PairwiseDistances()],
        output_modules=[
            spk.atomistic.Atomwise(n_in=8, output_key="energy"),
            spk.atomistic.Forces(calc_stress=stress),
        ],
    )


def test_ases_calculator_gives_schnetpacks_own_values_at_one_shape(monkeypatch):
    from schnetpack.interfaces.ase_interface import SpkCalculator

    model = potential("PaiNN", stress=True).double()
    # What it reads files with refuses them since torch reads weights only.
    monkeypatch.setattr(SpkCalculator, "_load_model", lambda self, *file: model)
    own = SpkCalculator(
        "model",
        ASENeighborList(CUTOFF),
        stress_key="stress",
        energy_unit="kcal/mol",
        dtype=torch.float64,
    )
    energy_unit = own.energy_conversion
    in_a_cell = [atoms for atoms in metals(8) if atoms.pbc.all() or not atoms.set_cell(30 * np.eye(3))]
    require_the_same(SystemsCalculator(evaluator(model, energy_unit=energy_unit)), own, in_a_cell)


def outputs(*names):
    losses = {"energy": torch.nn.MSELoss(), "forces": torch.nn.L1Loss(), "stress": torch.nn.MSELoss()}
    return [
        spk.task.ModelOutput(name, losses[name], 2.0, metrics={"mae": torchmetrics.MeanAbsoluteError()})
        for name in names
    ]


def task(model, kind=FixedSizeTask, names=NAMES):
    return kind(model, outputs(*names), optimizer_args={"lr": 1e-3})


@pytest.mark.parametrize("kind", ["SchNet", "PaiNN"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_padding_changes_no_energy_force_stress_loss_or_gradient(kind, dtype, tolerance):
    listed, shapes = items(dtype=dtype), set()
    ours = task(potential(kind, stress=True)).to(dtype)
    loader = fixed_size_loader(listed, **SIZES)
    weights = [weight for weight in ours.parameters() if weight.requires_grad]
    for batch, ids in zip(loader, loader.plan(), strict=True):
        shapes.add(tuple((name, tuple(value.shape)) for name, value in sorted(batch.items())))
        own = _atoms_collate_fn([listed[i] for i in ids.tolist()])
        stepped = TaskStep(ours.model, outputs(*NAMES))(**{name: value.clone() for name, value in batch.items()})
        found = []
        for given in (own, batch):
            real = ours._with_real_targets(given)
            pred = ours(dict(given))
            loss = ours.loss_fn(pred, real)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
            found.append([loss, *(pred[name] for name in NAMES), *gradients])
        torch.testing.assert_close(stepped, found[0][0], rtol=tolerance, atol=tolerance)
        for one, other in zip(*found, strict=True):
            scale = max(1.0, float(one.abs().max())) if one is not None else 1.0
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("SchNet", {}),
        ("SchNet", {"activation": torch.nn.functional.silu, "shared_interactions": True}),
        ("PaiNN", {}),
        ("PaiNN", {"shared_filters": True, "cutoff_fn": spk.nn.MollifierCutoff(CUTOFF)}),
        ("SchNet", {"activation": torch.nn.functional.relu}),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_interactions_in_one_pass_change_no_result_gradient_or_name(kind, choices, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(filter_grid, "EDGES_FOR_EACH_POINT", 0)  # there are few edges
    listed = items(dtype=dtype)
    batch = next(iter(fixed_size_loader(listed, **SIZES)))
    models = [task(potential(kind, stress=True, **choices)).to(dtype) for _ in "ab"]
    names = list(models[0].state_dict())
    assert in_one_pass(in_one_pass(models[1])) is models[1]
    assert list(models[1].state_dict()) == names
    for given in (_atoms_collate_fn(listed[:3]), batch):
        found = []
        for model in models:
            pred = model(dict(given))
            loss = model.loss_fn(pred, model._with_real_targets(given))
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            gradients = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
            found.append([loss, *(pred[name] for name in NAMES), *(one for one in gradients if one is not None)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance * max(1.0, float(one.abs().max())))


@pytest.mark.parametrize("kind", ["SchNet", "PaiNN"])
def test_a_captured_step_has_all_interactions_in_one_pass(kind, monkeypatch):
    loader = fixed_size_loader(items(dtype=torch.float32), **SIZES)
    steps = [TaskStep(potential(kind), outputs("energy", "forces")) for _ in "ab"]
    in_one_pass(steps[1])
    monkeypatch.setattr(filter_grid, "EDGES_FOR_EACH_POINT", 1)  # these batches have 700 edges
    compiled = [popgeo.compile_step(one, torch.optim.Adam(one.parameters(), lr=1e-3)) for one in steps]
    losses = [[float(step(**batch)) for batch in loader] for step in compiled]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=0.0)
    assert "2 of 2 interactions with filters on a grid" in repr(compiled[1])


def test_what_cannot_be_one_pass_is_told():
    with pytest.raises(ValueError, match="no SchNet or PaiNN of SchNetPack in this Linear"):
        in_one_pass(torch.nn.Linear(2, 2))
    unknown = potential()
    unknown.representation.cutoff_fn = spk.nn.SwitchFunction(1.0, CUTOFF)
    with pytest.raises(ValueError, match="SwitchFunction is not CosineCutoff"):
        in_one_pass(unknown)


def test_a_batch_is_schnetpacks_own_with_masks_and_without_targets_in_padding():
    listed = items()
    loader = fixed_size_loader(listed, **SIZES)
    for batch, ids in zip(loader, loader.plan(), strict=True):
        own = _atoms_collate_fn([listed[i] for i in ids.tolist()])
        assert set(batch) - set(own) == {"nodes_mask", "edges_mask", "graphs_mask"}
        assert set(own) <= set(batch)
        for name, value in own.items():
            assert (value.dtype, value.dim()) == (batch[name].dtype, batch[name].dim())
            assert torch.equal(batch[name][: len(value)], value)
        assert batch["forces"][~batch["nodes_mask"]].isnan().all()
        assert (batch["_idx"][~batch["graphs_mask"]] == -1).all()
        plain = task(potential(), spk.task.AtomisticTask, ["energy", "forces"]).double()
        assert plain.loss_fn(plain(dict(batch)), batch).isnan()


def test_the_step_is_captured_and_trains_as_eager_does():
    loader = fixed_size_loader(items(), **SIZES, shuffle=True)
    steps = [TaskStep(potential(), outputs("energy", "forces")).double() for _ in "ab"]
    optimizers, losses = [torch.optim.Adam(step.parameters(), lr=1e-3) for step in steps], []
    compiled = popgeo.compile_step(steps[1], optimizers[1])
    while len(losses) < 20:
        for batch in loader:
            optimizers[0].zero_grad()
            eager = steps[0](**{name: value.clone() for name, value in batch.items()})
            eager.backward()
            optimizers[0].step()
            losses.append((float(eager.detach()), float(compiled(**batch))))
    torch.testing.assert_close(*torch.tensor(losses, dtype=torch.float64).T, rtol=1e-9, atol=0.0)
    for one, other in zip(*(step.parameters() for step in steps), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_a_trainer_fits_a_data_module_with_the_loader_in_place_and_its_metrics_are_schnetpacks(tmp_path):
    made = spk.data.ASEAtomsData.create(str(tmp_path / "metals.db"), "Ang", {"energy": "eV", "forces": "eV/Ang"})
    labelled = metals(12, keep=True)
    made.add_systems(
        [{"energy": np.array([a.calc.results["energy"]]), "forces": a.calc.results["forces"]} for a in labelled],
        labelled,
    )
    metrics = []
    for fixed in (False, True):
        datamodule = spk.data.AtomsDataModule(
            str(tmp_path / "metals.db"), batch_size=4, num_train=8, num_val=4, num_workers=0, num_val_workers=0,
            num_test_workers=0, split_file=str(tmp_path / "split.npz"),
            transforms=[ASENeighborList(CUTOFF), spk.transform.CastTo32()],
        )  # fmt: skip
        if fixed:
            use_fixed_sizes(datamodule, splits=("train", "val"), **SIZES)
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            default_root_dir=tmp_path, num_sanity_val_steps=0, inference_mode=False,
        )  # fmt: skip
        fitted = task(potential(), FixedSizeTask if fixed else spk.task.AtomisticTask, ["energy", "forces"])
        trainer.validate(fitted, datamodule=datamodule, verbose=False)
        metrics.append(dict(trainer.callback_metrics))
        trainer.fit(fitted, datamodule=datamodule)
        assert float(trainer.callback_metrics["val_loss"]) < float(metrics[-1]["val_loss"])
    for name in ("val_energy_mae", "val_forces_mae"):
        torch.testing.assert_close(metrics[0][name], metrics[1][name], rtol=1e-5, atol=0)


def test_bad_input_is_refused_by_its_number():
    with pytest.raises(ValueError, match=r"Structure 1: it has \d+ edges, but \d+ pairs .* the cutoff of 4"):
        fixed_size_loader(items(cutoff=2.7), **SIZES)
    listed = items(number=4)
    with pytest.raises(ValueError, match="Structure 1: it is a batch of 2 structures"):
        fixed_size_loader([listed[0], _atoms_collate_fn(listed[:2])], **SIZES)
    with pytest.raises(ValueError, match="Structure 1: it is a Atoms, not an item"):
        fixed_size_loader([listed[0], ase.Atoms("Cu")], **SIZES)
    without = {name: value for name, value in listed[2].items() if name != "energy"}
    with pytest.raises(ValueError, match=r"Structure 2: .* lacks \['energy'\]"):
        fixed_size_loader([*listed[:2], without], **SIZES)
    heavy = [*listed[:2], {**listed[2], "_atomic_numbers": listed[2]["_atomic_numbers"] + 90}]
    with pytest.raises(ValueError, match="Structure 2: it has the atomic number 119; max_z is 100"):
        fixed_size_loader(heavy, **SIZES)
    batch, model = next(iter(fixed_size_loader(heavy, **SIZES, max_z=200))), potential().double()
    alone = ase.Atoms("Cu", cell=[30, 30, 30])
    alone.numbers += 90
    for call in (
        lambda: task(model, names=["energy"])(dict(batch)),
        lambda: TaskStep(model, outputs("energy"))(**batch),
    ):
        with pytest.raises(ValueError, match=r"Structure \d of the batch has the species 119; the model knows 0 to 99"):
            call()
    with pytest.raises(ValueError, match=r"System 0: it has atoms of number 119, which is not an element"):
        evaluator(model)([alone])
    with pytest.raises(ValueError, match=r"Structure 2: its cell has the shape \[1\], not"):
        fixed_size_loader([*listed[:2], {**listed[2], "_cell": torch.tensor([3.0])}], **SIZES)
    triples = [{**item, "_idx_i_triples": torch.arange(5 + 7 * place)} for place, item in enumerate(listed)]
    with pytest.raises(ValueError, match=r"'_idx_i_triples' has .* rows in the first structures"):
        fixed_size_loader(triples, **SIZES)
    assert of_real({"energy": torch.ones(2)}, {}, ["energy"])["energy"].shape == (2,)
