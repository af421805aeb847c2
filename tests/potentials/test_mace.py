"""MACE, the real package, with random weights on structures of EMT: fixed shape changes nothing but the time."""

import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import popgeo
from popgeo.native import library
from popgeo.potentials.evaluator import SystemsCalculator
from tests.support.calculators import require_the_same
from tests.support.metals import metals

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("mace", reason="needs mace-torch")
    from e3nn import o3
    from mace import data, modules, tools
    from mace.tools.compile import disable_e3nn_codegen
    from mace.tools.torch_geometric import Batch, DataLoader

    from popgeo.potentials import run_mace
    from popgeo.potentials.mace import RealMeanLoss, TrainingStep, evaluator, fixed_size_loader, in_one_pass

ase = pytest.importorskip("ase")
pytestmark = pytest.mark.filterwarnings("ignore")
CUTOFF, TABLE = 4.0, tools.AtomicNumberTable([13, 29])
KEYS = data.KeySpecification(
    info_keys={"energy": "REF_energy", "stress": "REF_stress"}, arrays_keys={"forces": "REF_forces"}
)
SIZES = {"num_nodes": 40, "num_edges": 700, "batch_size": 6, "cutoff": CUTOFF}


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def items(cutoff: float = CUTOFF, number: int = 12) -> list:
    configs = [data.config_from_atoms(atoms, key_specification=KEYS) for atoms in metals(number)]
    return [data.AtomicData.from_config(config, z_table=TABLE, cutoff=cutoff) for config in configs]


def small_mace(cutoff: float = CUTOFF, heads: list[str] | None = None) -> torch.nn.Module:
    torch.manual_seed(0)
    many = len(heads or ["Default"])
    block = modules.RealAgnosticResidualInteractionBlock
    return modules.ScaleShiftMACE(
        r_max=cutoff,
        num_bessel=4,
        num_polynomial_cutoff=5,
        max_ell=1,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=2,
        hidden_irreps=o3.Irreps("4x0e+4x1o"),
        MLP_irreps=o3.Irreps("4x0e"),
        atomic_energies=np.array([[0.5, -1.0], [2.0, 3.0]][:many]).squeeze(),
        heads=heads,
        avg_num_neighbors=10.0,
        atomic_numbers=[13, 29],
        correlation=2,
        gate=torch.nn.functional.silu,
        atomic_inter_scale=[1.0, 0.5][:many] if many > 1 else 1.0,
        atomic_inter_shift=[0.0, 0.3][:many] if many > 1 else 0.0,
    )


LOSSES = {
    "weighted": modules.WeightedEnergyForcesLoss(1, 10),
    "stress": modules.WeightedEnergyForcesStressLoss(1, 10, 100),
    "virials": modules.WeightedEnergyForcesVirialsLoss(1, 10, 10),
    "huber": modules.WeightedHuberEnergyForcesStressLoss(1, 10, 10),
    "universal": modules.UniversalLoss(1, 10, 10),
    "l1l2": modules.WeightedEnergyForcesL1L2Loss(1, 10),
}


def results(model: torch.nn.Module, loss_fn: torch.nn.Module, batch: object) -> dict:
    model.zero_grad()
    out = model(batch.to_dict(), training=True, compute_stress=True, compute_virials=True)
    loss = loss_fn(pred=out, ref=batch)
    loss.backward()
    grads = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return {"loss": loss.detach(), **grads, **{name: out[name].detach() for name in ("energy", "forces", "stress")}}


@pytest.mark.parametrize("precision", [torch.float64, torch.float32], ids=str)
def test_padding_changes_no_energy_force_stress_loss_or_gradient(precision: torch.dtype) -> None:
    torch.set_default_dtype(precision)
    tolerance = 1e-10 if precision is torch.float64 else 1e-5
    listed, model = items(), small_mace()
    loader = fixed_size_loader(listed, **SIZES)
    for batch, ids in zip(loader, loader.plan(), strict=True):
        own = Batch.from_data_list([listed[i] for i in ids.tolist()])
        for name, loss_fn in LOSSES.items():
            loss_fn.to(precision)
            given = loss_fn if name in ("weighted", "stress", "virials") else RealMeanLoss(loss_fn)
            expected, found = results(model, loss_fn, own), results(model, given, batch)
            for key, value in expected.items():
                error = (found[key][: len(value)] if value.dim() else found[key]) - value
                assert error.abs().max() <= tolerance * max(1.0, value.abs().max()), (name, key)


def test_a_batch_is_maces_own_with_masks() -> None:
    listed = items()
    loader = fixed_size_loader(listed, **SIZES)
    batch, own = next(iter(loader)), next(iter(DataLoader(listed, batch_size=5)))
    assert type(batch) is type(own)
    added = {"nodes_mask", "edges_mask", "graphs_mask", "opposite_edge"}
    assert set(batch.keys) - set(own.keys) == added
    assert set(own.keys) <= set(batch.keys)
    assert all(own[name].dtype == batch[name].dtype for name in own.keys)
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (6, 40, 700)
    assert not batch.weight[~batch.graphs_mask].any()
    assert len({tuple((name, batch[name].shape) for name in batch.keys) for batch in loader}) == 1
    assert batch.to("cpu").to_dict()["cell"].shape == (18, 3)


def test_convolutions_in_one_pass_change_no_result_or_gradient_and_no_name_of_a_weight() -> None:
    batch = next(iter(fixed_size_loader(items(), **SIZES)))
    plain, fused = small_mace(), in_one_pass(small_mace())
    assert list(plain.state_dict()) == list(fused.state_dict())
    fused.load_state_dict(plain.state_dict())
    found = results(fused, LOSSES["stress"], batch)
    for name, value in results(plain, LOSSES["stress"], batch).items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)


def test_what_is_no_model_of_mace_is_told() -> None:
    with pytest.raises(ValueError, match="no interactions of MACE in this Linear"):
        in_one_pass(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_memory_of_a_step_is_known_before_any_data(dtype: torch.dtype) -> None:
    step = TrainingStep(in_one_pass(small_mace().to(dtype)), LOSSES["weighted"].to(dtype))
    optimizer = torch.optim.Adam(step.parameters())
    torch.set_default_dtype(dtype)
    known = popgeo.memory(step, popgeo.FixedSizeOptions(num_nodes=40, num_edges=700, num_graphs=6), optimizer)
    batch = next(iter(fixed_size_loader(items(), **SIZES))).to_dict()
    found = popgeo.memory(step, batch, optimizer)
    assert (known.compiled, known.eager) == (found.compiled, found.eager)
    compiled = popgeo.compile_step(step, optimizer, batch)
    assert known.compiled.activations < compiled.bound.on_processor.usual.buffer_bytes < known.compiled.peak


def test_the_step_is_captured_and_trains_as_eager_does() -> None:
    loader = fixed_size_loader(items(), **SIZES, shuffle=True)
    steps, losses = (
        [
            TrainingStep(model, LOSSES["stress"].double(), {"forces": True, "stress": True})
            for model in (small_mace(), in_one_pass(small_mace()))
        ],
        [],
    )
    optimizers = [torch.optim.Adam(step.model.parameters(), lr=1e-3, amsgrad=True) for step in steps]
    compiled = popgeo.compile_step(steps[1], optimizers[1], options=popgeo.StepOptions(max_grad_norm=10.0))
    while len(losses) < 20:
        for batch in loader:
            optimizers[0].zero_grad()
            eager = steps[0](**{name: value.clone() for name, value in batch.to_dict().items()})
            eager.backward()
            torch.nn.utils.clip_grad_norm_(steps[0].parameters(), 10.0)
            optimizers[0].step()
            losses.append((float(eager.detach()), float(compiled(**batch.to_dict()))))
    torch.testing.assert_close(*torch.tensor(losses).T, rtol=1e-9, atol=0.0)
    for one, other in zip(*(step.parameters() for step in steps), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_torch_traces_the_model_once_an_epoch() -> None:
    def traces(loader: object, change: object = lambda model: model) -> int:
        torch._dynamo.reset()
        graphs = []

        def count(graph: torch.fx.GraphModule, _: object) -> object:
            graphs.append(graph)
            return graph.forward

        with disable_e3nn_codegen():
            model = change(tools.compile.prepare(small_mace)())
        compiled = torch.compile(model, dynamic=False, backend=count, fullgraph=True)
        for batch in loader:
            batch.positions.requires_grad_()  # MACE leaves it to the caller while torch compiles
            compiled(batch.to_dict(), training=True)
        return len(graphs)

    listed = items()
    assert traces(fixed_size_loader(listed, **SIZES)) == 1
    assert traces(fixed_size_loader(listed, **SIZES), in_one_pass) == 1
    assert traces(DataLoader(listed, batch_size=4)) == 3


def test_ases_calculator_gives_maces_own_values_at_one_shape() -> None:
    from mace.calculators import MACECalculator

    model = small_mace()
    own = MACECalculator(models=model, device="cpu", default_dtype="float64")
    require_the_same(SystemsCalculator(evaluator(model)), own, metals(8))
    with pytest.raises(ValueError, match=r"System 0: it has the atomic numbers \[79\], .* it knows \[13, 29\]"):
        evaluator(model)([ase.Atoms("CuAu", [[0, 0, 0], [0, 0, 2]])])


def test_a_campaign_has_the_bits_of_structures_alone_with_a_single_atom_too() -> None:
    model, structures = small_mace(), [*metals(6), ase.Atoms("Cu", cell=[2.4] * 3, pbc=True), ase.Atoms("Al")]
    ours = evaluator(model)
    ours.make_room(structures)
    for atoms in structures:
        for name, value in evaluator(model)([atoms]).items():
            assert torch.equal(ours([atoms])[name], value), name
    assert ours.num_shapes <= 2


@pytest.mark.parametrize(("heads", "default"), [(["old", "Default"], "Default"), (["old", "new"], None)])
def test_each_head_gives_maces_own_values_and_none_is_taken_by_its_place(heads: list[str], default: str | None) -> None:
    from mace.calculators import MACECalculator

    model = small_mace(heads=heads)
    for head in heads:
        own = MACECalculator(models=model, device="cpu", default_dtype="float64", head=head)
        require_the_same(SystemsCalculator(evaluator(model, head=head)), own, metals(4))
    if default is None:
        with pytest.raises(ValueError, match=r"the model has \['old', 'new'\]"):
            evaluator(model)
    else:
        require_the_same(SystemsCalculator(evaluator(model)), own, metals(4))
    with pytest.raises(ValueError, match="The head is 'older'"):
        evaluator(model, head="older")


@pytest.mark.parametrize("step", ["eager", "engine"])
def test_maces_command_trains_at_fixed_shape_with_its_own_metrics(step: str, tmp_path: Path, caplog: object) -> None:
    made = metals(14)
    ase.io.write(tmp_path / "train.xyz", made[:9])
    ase.io.write(tmp_path / "valid.xyz", made[9:])
    texts = {
        "model": "MACE", "num_channels": 4, "max_L": 1, "max_ell": 1, "r_max": CUTOFF, "correlation": 1, "seed": 1,
        "train_file": tmp_path / "train.xyz", "valid_file": tmp_path / "valid.xyz", "E0s": "{13: 0.0, 29: 0.0}",
        "energy_key": "REF_energy", "forces_key": "REF_forces", "max_num_epochs": 1, "batch_size": 3, "plot": False,
        "valid_batch_size": 2, "device": "cpu", "default_dtype": "float64",
    }  # fmt: skip
    lines = {}
    for name, own in {"plain": [], "fixed": ["--fixed_size", "--step", step]}.items():
        words = [f"--{key}={value}" for key, value in {**texts, "name": name, "work_dir": tmp_path / name}.items()]
        with caplog.at_level(logging.INFO):
            run_mace.main([*words, *own])
        logging.getLogger().handlers[:] = [h for h in logging.getLogger().handlers if "pytest" in type(h).__module__]
        lines[name] = [text for text in caplog.messages if text.startswith(("Initial", "Epoch"))]
        caplog.clear()
    assert lines["plain"][0] == lines["fixed"][0]
    assert len(lines["fixed"]) == 2
    assert sys.modules["mace.tools.train"].take_step.__module__ == "mace.tools.train"


def test_bad_input_is_refused_by_its_number() -> None:
    short = items(cutoff=2.7)
    with pytest.raises(ValueError, match=r"Structure 1: it has \d+ edges, but \d+ pairs .* the cutoff of 4"):
        fixed_size_loader(short, **SIZES)
    listed = items()
    listed[2].node_attrs = torch.zeros_like(listed[2].node_attrs)
    with pytest.raises(ValueError, match="Structure 2: an atom of node_attrs has no species"):
        fixed_size_loader(listed, **SIZES)
    with pytest.raises(ValueError, match="Structure 1: it is a Data, not an AtomicData"):
        fixed_size_loader([items(number=1)[0], Data()], **SIZES)
    batch = next(iter(fixed_size_loader(items(number=3), **SIZES)))
    with pytest.raises(ValueError, match="Structure 1: it is a batch of 6 structures"):
        fixed_size_loader([items(number=1)[0], batch], **SIZES)
    batch.node_attrs = batch.node_attrs.repeat(1, 2)
    with pytest.raises(ValueError, match=r"node_attrs has 4 species and the model 2. .* numbers, \[13, 29\]"):
        TrainingStep(small_mace(), LOSSES["weighted"])(**batch.to_dict())
    with pytest.raises(ValueError, match="Graph 1 has 3 nodes, a batch holds 2 real ones"):
        fixed_size_loader(items(), num_nodes=7, num_edges=700, batch_size=6, fixed_size_strategy="StreamPack").plan()


def test_the_guide_makes_items_of_atoms_and_trains_on_them():
    """Return the block for a script, with shorter cutoffs, fewer slots and one epoch."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "potentials.md").read_text()
    block = page.partition("from mace import data, tools\n")
    block = block[1] + block[2].partition("```")[0]
    for written, here in {"5.0": "4.0", "512": "40", "12_000": "700", "=24": "=6", "(100)": "(1)"}.items():
        assert written in block
        block = block.replace(written, here)
    model = small_mace()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters())
    held = {"structures": metals(12), "model": model, "loss_fn": LOSSES["weighted"], "optimizer": optimizer}
    exec(compile(block, "potentials.md", "exec"), held)
    assert torch.isfinite(held["loss"]).all()
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


class _PartOfSystem(torch.nn.Module):
    """MACE with a loss that reads the systems with a weight."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, weights: torch.Tensor, **batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.model(batch, training=True)
        energy, forces = made["energy"], made["forces"]
        loss = (energy.square() * weights).sum() + (forces.square().sum(1) * weights[batch["batch"]]).sum()
        return loss, energy.detach(), forces.detach()


@pytest.mark.skipif(not library.is_available(), reason="batch_invariant needs the compiled library")
@pytest.mark.parametrize("precision", [torch.float64, torch.float32], ids=str)
def test_a_system_has_the_same_bits_in_every_batch(precision: torch.dtype) -> None:
    torch.set_default_dtype(precision)
    listed, part = items(number=8), _PartOfSystem(in_one_pass(small_mace()))
    options = popgeo.StepOptions(batch_invariant=True, show_progress=False)
    known: dict[int, dict[str, torch.Tensor]] = {}
    for sizes in ({"num_nodes": 24, "num_edges": 500, "batch_size": 2}, SIZES):
        optimizer = torch.optim.Adam(part.parameters(), 0.0, (0.0, 0.0))  # keeps gradients, changes no weight
        step = popgeo.compile_step(part, optimizer, options=options)
        loader = fixed_size_loader(listed, **{**SIZES, **sizes})
        for batch, ids in zip(loader, loader.plan(), strict=True):
            given = batch.to_dict()
            for slot, i in enumerate(ids.tolist()):
                weights = torch.zeros(len(given["ptr"]) - 1)
                weights[slot] = 1.0
                _, energy, forces = step(weights, **given)
                found = {"energy": energy[slot].clone(), "forces": forces[given["batch"] == slot].clone()}
                found |= {
                    name: optimizer.state[weight]["exp_avg"].clone()
                    for name, weight in part.named_parameters()
                    if weight in optimizer.state
                }
                for name, bits in known.setdefault(i, found).items():
                    assert torch.equal(bits, found[name]), name
