"""NequIP, the real package, with random weights on structures of EMT: fixed shape changes nothing but the time."""

import warnings

import pytest
import torch

import popgeo
from popgeo.potentials.evaluator import SystemsCalculator
from tests.support.calculators import require_the_same
from tests.support.metals import metals

ase = pytest.importorskip("ase")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("nequip", reason="needs nequip")
    from nequip.data import AtomicDataDict, from_ase
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
    from nequip.integrations.ase import NequIPCalculator
    from nequip.model import NequIPGNNModel
    from nequip.train import EnergyForceStressLoss, EnergyForceStressMetrics
    from nequip.utils.global_state import set_global_state

    from popgeo.potentials.nequip import (
        FixedSizeLightningModule,
        evaluator,
        example_batch,
        fixed_size_loader,
        in_one_pass,
        of_real,
    )
    from popgeo.potentials.padding import mean_over_real

pytestmark = pytest.mark.filterwarnings("ignore")
CUTOFF, TYPES = 4.0, ["Al", "Cu"]
SIZES = {"num_nodes": 40, "num_edges": 700, "batch_size": 6, "cutoff": CUTOFF}


@pytest.fixture(autouse=True)
def _nequips_own_state():
    before = torch.get_default_dtype()
    set_global_state()
    torch.set_default_dtype(torch.float64)  # which it sets once only, and forces follow
    yield
    torch.set_default_dtype(before)


def frames(cutoff=CUTOFF, number=12):
    transforms = [ChemicalSpeciesToAtomTypeMapper(TYPES), NeighborListTransform(cutoff)]
    made = []
    for atoms in metals(number, keep=True):
        frame = from_ase(atoms)
        for transform in transforms:
            frame = transform(frame)
        made.append(frame)
    return made


def small_nequip(dtype="float64", compile_mode="eager"):
    return NequIPGNNModel(
        seed=0,
        model_dtype=dtype,
        type_names=TYPES,
        r_max=CUTOFF,
        num_bessels=4,
        num_layers=2,
        l_max=1,
        parity=False,
        num_features=4,
        radial_mlp_depth=1,
        radial_mlp_width=8,
        avg_num_neighbors=10.0,
        per_type_energy_shifts={"Al": 0.5, "Cu": -1.0},
        compile_mode=compile_mode,
    )


def losses_and_gradients(model, output, target):
    metrics = EnergyForceStressLoss(ignore_nan={"stress": True})
    loss = metrics(output, target)["weighted_sum"]
    return loss, torch.autograd.grad(loss, [w for w in model.parameters() if w.requires_grad], allow_unused=True)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_padding_changes_no_energy_force_stress_metric_or_gradient(dtype, tolerance):
    listed, model = frames(), small_nequip(dtype)
    loader = fixed_size_loader(listed, **SIZES)
    shapes = set()
    for batch, ids in zip(loader, loader.plan(), strict=True):
        shapes.add(tuple((name, tuple(value.shape)) for name, value in sorted(batch.items())))
        own = AtomicDataDict.batched_from_list([listed[i] for i in ids.tolist()])
        expected, found = model(own.copy()), of_real(model(batch.copy()), batch)
        for name in ("total_energy", "forces", "stress"):
            torch.testing.assert_close(found[name], expected[name], rtol=tolerance, atol=tolerance, equal_nan=True)
        for name in own:  # what is real is NequIP's own batch
            torch.testing.assert_close(of_real(batch, batch)[name], own[name], rtol=0, atol=0, equal_nan=True)
        loss, gradients = losses_and_gradients(model, found, of_real(batch, batch))
        own_loss, own_gradients = losses_and_gradients(model, expected, own)
        torch.testing.assert_close(loss, own_loss, rtol=tolerance, atol=tolerance)
        for one, other in zip(gradients, own_gradients, strict=True):
            scale = max(1.0, float(other.abs().max())) if other is not None else 1.0
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)
    assert len(shapes) == 1


def test_metrics_that_ignore_nan_leave_padding_out_and_others_are_nan():
    batch = next(iter(fixed_size_loader(frames(), **SIZES)))
    output = small_nequip()(batch.copy())
    ignoring = EnergyForceStressMetrics(ignore_nan={"total_energy": True, "forces": True, "stress": True})
    plain = EnergyForceStressMetrics(ignore_nan={"stress": True})
    expected = plain(of_real(output, batch), of_real(batch, batch))
    for name, value in ignoring(output, batch).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=0)
    assert bool(plain(output, batch)["forces_mae"].isnan())


def test_ases_calculator_gives_nequips_own_values_at_one_shape():
    model = small_nequip().eval()
    own = NequIPCalculator(
        model,
        "cpu",
        transforms=[
            ChemicalSpeciesToAtomTypeMapper(model_type_names=["Al", "Cu"]),
            NeighborListTransform(r_max=CUTOFF),
        ],
    )
    require_the_same(SystemsCalculator(evaluator(model)), own, metals(8))


def test_without_padding_the_batches_are_nequips_own_and_an_epoch_says_the_same():
    listed, model = frames(), small_nequip()
    sums = {}
    for padding in (True, False):
        drawn = torch.Generator().manual_seed(0)
        loader = fixed_size_loader(listed, **SIZES, shuffle=True, padding=padding, generator=drawn)
        sums[padding], order = torch.zeros(3), []
        for batch in loader:
            real, out = of_real(batch, batch), of_real(model(batch.copy()), batch)
            errors = [out[name] - real[name] for name in ("total_energy", "forces")]
            sums[padding] += torch.stack(
                [*(error.abs().sum() for error in errors), torch.tensor(float(len(errors[0])))]
            )
            order += real["total_energy"].flatten().tolist()
        assert order != [float(frame["total_energy"]) for frame in listed]  # it is shuffled either way
        assert sorted(order) == sorted(float(frame["total_energy"]) for frame in listed)
    torch.testing.assert_close(sums[True], sums[False], rtol=1e-12, atol=0)


class Step(torch.nn.Module):
    """A module that computes NequIP's loss of energies per atom and of forces, over real rows."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        out = self.model({name: value for name, value in batch.items() if not name.endswith("_mask")})
        energy = (out["total_energy"] - batch["total_energy"]) / batch["num_atoms"][:, None]
        of_energy = mean_over_real(energy.square(), batch["graphs_mask"])
        return of_energy + mean_over_real((out["forces"] - batch["forces"]).square(), batch["nodes_mask"])


def test_the_memory_of_a_step_is_known_before_any_data():
    step = Step(small_nequip())
    optimizer = torch.optim.Adam(step.parameters())
    sizes = popgeo.FixedSizeOptions(num_nodes=40, num_edges=700, num_graphs=6)
    known = popgeo.memory(step, sizes, optimizer, example=lambda sizes: example_batch(step.model, sizes))
    batch = next(iter(fixed_size_loader(frames(), **SIZES)))
    needed = ("pos", "atom_types", "edge_index", "edge_cell_shift", "cell", "total_energy", "forces", "batch")
    assert {name: batch[name].shape for name in needed} == {
        name: example_batch(step.model, sizes)[name].shape for name in needed
    }
    compiled = popgeo.compile_step(step, optimizer, batch)
    assert known.compiled.activations < compiled.bound.on_processor.usual.buffer_bytes < known.compiled.peak


def test_the_step_is_captured_and_trains_as_eager_does():
    loader = fixed_size_loader(frames(), **SIZES, shuffle=True)
    steps, losses = [Step(small_nequip()) for _ in "ab"], []
    optimizers = [torch.optim.Adam(step.parameters(), lr=1e-3) for step in steps]
    compiled = popgeo.compile_step(steps[1], optimizers[1])
    while len(losses) < 20:
        for batch in loader:
            batch = {name: value.nan_to_num() if value.is_floating_point() else value for name, value in batch.items()}
            optimizers[0].zero_grad()
            eager = steps[0](**{name: value.clone() for name, value in batch.items()})
            eager.backward()
            optimizers[0].step()
            losses.append((float(eager.detach()), float(compiled(**batch))))
    torch.testing.assert_close(*torch.tensor(losses, dtype=torch.float64).T, rtol=1e-9, atol=0.0)
    for one, other in zip(*(step.parameters() for step in steps), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_bad_input_is_refused_by_its_number():
    with pytest.raises(ValueError, match=r"Structure 1: it has \d+ edges, but \d+ pairs .* the cutoff of 4"):
        fixed_size_loader(frames(cutoff=2.7), **SIZES)
    listed = frames(number=4)
    without_cell = {name: value for name, value in listed[2].items() if name not in ("cell", "pbc", "edge_cell_shift")}
    with pytest.raises(ValueError, match=r"Structure 2: it has the fields .*cell"):
        fixed_size_loader([*listed[:2], without_cell], **SIZES)
    with pytest.raises(ValueError, match="Structure 1: it is a batch of 2 frames"):
        fixed_size_loader([listed[0], AtomicDataDict.batched_from_list(listed[:2])], **SIZES)
    with pytest.raises(ValueError, match="Structure 1: it is a Atoms, not an AtomicDataDict"):
        fixed_size_loader([listed[0], ase.Atoms("Cu")], **SIZES)
    with pytest.raises(ValueError, match=r"Structure 2: its cell has the shape \[1\], not"):
        fixed_size_loader([*listed[:2], {**listed[2], "cell": torch.tensor([3.0])}], **SIZES)
    beyond = next(
        iter(fixed_size_loader([listed[3], {**listed[2], "atom_types": 2 + listed[2]["atom_types"]}], **SIZES))
    )
    module = FixedSizeLightningModule.__new__(FixedSizeLightningModule)
    torch.nn.Module.__init__(module)
    module.model = torch.nn.ModuleDict({"sole_model": small_nequip()})
    with pytest.raises(ValueError, match=r"Structure \d of the batch has the species [23]; the model knows 0 to 1"):
        module(beyond)
    with pytest.raises(ValueError, match="takes no collate_fn"):
        fixed_size_loader(listed, **SIZES, collate_fn=list)
    with pytest.raises(ValueError, match="Structure 0: it has the type 1; the model knows 0 to 0"):
        fixed_size_loader(listed, **SIZES, type_names=["Al"])
    with pytest.raises(ValueError, match="Structure 0: its Cu has the type 1, which is Al to the model"):
        fixed_size_loader(listed, **SIZES, type_names=["Cu", "Al"])
    assert len(fixed_size_loader(listed, **SIZES, type_names=TYPES))


def test_what_is_no_model_of_nequip_is_told():
    with pytest.raises(ValueError, match="no convolution of NequIP in this Linear"):
        in_one_pass(torch.nn.Linear(2, 2))


def test_convolutions_in_one_pass_change_no_energy_force_stress_or_gradient_and_no_name_of_a_weight():
    batch = next(iter(fixed_size_loader(frames(), **SIZES)))
    plain, fused = small_nequip(), in_one_pass(small_nequip())
    assert list(plain.state_dict()) == list(fused.state_dict())
    fused.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, fused):
        output = of_real(model(batch.copy()), batch)
        loss, gradients = losses_and_gradients(model, output, of_real(batch, batch))
        found.append([loss, *(output[name] for name in ("total_energy", "forces", "stress")), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)  # stress without a cell
