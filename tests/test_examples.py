"""Every example runs with small settings and confirms its claims."""

import gzip
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch_geometric.data import Data, InMemoryDataset

from popgeo.nn import ComplEx, KnownTriples, Ranks, rank_entities
from tests.support.old_names import take_names_back

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Iterator[Run]:
    """Yield a function that runs a script as `python script arguments` does, and returns its output."""

    def run_script(path: str | Path, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(str(EXAMPLES))  # as Python does for a script
        runpy.run_path(str(EXAMPLES / path), run_name="__main__")
        return capsys.readouterr().out

    yield run_script
    take_names_back()  # names enabled by a PopTorch example


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Reset torch.compile before and after a test."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


NEEDS = {  # the package, and popgeo's extra with the package
    "copper_stress.py": ("vesin", "atoms"),
    "graph_in_database.py": ("ladybug", "stores"),
    "lightning_schnet.py": ("lightning", "trainers"),
    "accelerate_gin.py": ("accelerate", "trainers"),
    "serve_schnet.py": ("ray", "serve"),
    "gpt2_on_ipus.py": ("transformers", "language"),
    "digits_poptorch.py": ("sklearn", "examples"),
    "class_imbalance_tudataset.py": ("sklearn", "examples"),
}


def skip_without(path: str) -> None:
    if path in NEEDS:
        package, extra = NEEDS[path]
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[{extra}]' in a clone")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
@pytest.mark.filterwarnings("ignore")  # warnings of the trainers
def test_every_example_explains_itself(path: Path, run: Run, capsys: pytest.CaptureFixture):
    skip_without(path.name)
    with pytest.raises(SystemExit) as ended:
        run(path, "--help")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_stress_of_copper_is_learned_and_asked_for_its_lattice_constant(run: Run, tmp_path: Path):
    skip_without("copper_stress.py")
    printed = run("copper_stress.py", "--structures", "20", "--epochs", "1", "--out", str(tmp_path))
    assert numbers(r"EMT: lattice constant ([\d.]+)", printed) == [3.59]
    assert (tmp_path / "parity.png").exists()


def numbers(pattern: str, printed: str) -> list[float]:
    """Return the number in each match of a pattern."""
    return [float(found) for found in re.findall(pattern, printed)]


def test_three_changed_lines_make_torch_compile_compile_once(run: Run, tmp_path: Path, fresh_compiler: None):
    small = ("--molecules", "300", "--channels", "8", "--epochs", "2", "--backend", "eager")
    assert numbers(r"graphs compiled so far: (\d+)", run("compile_once.py", *small)) == [1, 1]
    source = (EXAMPLES / "compile_once.py").read_text()
    undone, count = re.subn(r"^( *)# was: (.*)\n.*\n", r"\1\2\n", source, flags=re.MULTILINE)
    assert count == 3
    (tmp_path / "as_it_was.py").write_text(undone)
    torch._dynamo.reset()
    counters.clear()
    assert numbers(r"graphs compiled so far: (\d+)", run(tmp_path / "as_it_was.py", *small))[-1] > 1


def test_jax_traces_the_step_of_its_example_once(run: Run):
    pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]' in a clone")
    printed = run("jax_gcn.py", "--molecules", "200", "--channels", "8", "--batch-size", "16", "--epochs", "2")
    assert numbers(r"traced so far: (\d+)", printed) == [1, 1]
    losses = numbers(r"loss ([\d.]+) eV", printed)
    assert losses[-1] < losses[0]


def test_heterogeneous_molecules_are_learned(run: Run):
    printed = run("hetero_molecules.py", "--molecules", "600", "--epochs", "4", "--channels", "32", "--layers", "2")
    errors = numbers(r"held-out error ([\d.]+) eV", printed)
    assert errors[-1] < numbers(r"predicting the mean: ([\d.]+) eV", printed)[0] * 0.8


def test_check_static_names_the_lines_of_an_own_model_and_passes_the_mended_one(run: Run):
    printed = run("own_model.py", "--molecules", "300", "--steps", "200", "--channels", "32")
    for line in (
        "src, dst = edge_index[:, edges_mask]",
        "if h.abs().max() > 1e4:",
        "num_graphs = int(batch.max()) + 1",
    ):
        assert f"in forward: {line}" in printed
    assert "Dynamic: 3 places are not static" in printed
    assert "Static: 0 places are not static" in printed
    assert numbers(r"largest difference .* (\S+) eV", printed)[0] < 1e-4
    first, last = re.findall(r"loss ([\d.]+) eV over the first ten steps, ([\d.]+) eV", printed)[0]
    assert float(last) < 0.8 * float(first)


def test_train_schnet_is_the_main_job(run: Run, tmp_path: Path):
    small = ("--limit", "200", "--epochs", "1", "--hidden-channels", "8", "--num-interactions", "1")
    run("train_schnet.py", *small, "--out", str(tmp_path))
    assert (tmp_path / "weights.pt").stat().st_size > 0


def test_gcn_classifies_cora(run: Run, shared_data: Path, tmp_path: Path):
    shutil.copytree(shared_data / "planetoid/Cora", tmp_path / "Cora")
    printed = run("gcn_planetoid.py", "--root", str(tmp_path), "--name", "Cora", "--seeds", "1", "--epochs", "30")
    assert numbers(r"Cora +([\d.]+)", printed)[0] > 70


def test_cora_is_learned_from_neighbors_and_from_clusters(run: Run, shared_data: Path, tmp_path: Path):
    shutil.copytree(shared_data / "planetoid/Cora", tmp_path / "Cora")
    printed = run("large_graph_planetoid.py", "--root", str(tmp_path), "--seeds", "1", "--epochs", "12")
    assert numbers(r"GraphSAGE +([\d.]+)", printed)[0] > 45
    assert numbers(r"Cluster-GCN +([\d.]+)", printed)[0] > 45


def test_links_of_cora_are_predicted(run: Run, shared_data: Path, tmp_path: Path):
    shutil.copytree(shared_data / "planetoid/Cora", tmp_path / "Cora")
    printed = run("link_prediction.py", "--root", str(tmp_path), "--epochs", "2", "--channels", "16")
    assert numbers(r"AUC on edges held out ([\d.]+)", printed)[-1] > 0.55


def test_planted_communities_are_found(run: Run):
    small = ("--nodes", "10000", "--communities", "5", "--labelled", "0.4", "--batch-size", "128", "--epochs", "2")
    printed = run("large_graph_communities.py", *small)
    assert numbers(r"held out ([\d.]+)%", printed)[-1] > 60


def test_gin_classifies_mutag(run: Run, shared_data: Path, tmp_path: Path):
    shutil.copytree(shared_data / "tu/MUTAG", tmp_path / "MUTAG")
    small = ("--folds", "2", "--epochs", "5", "--hidden", "16")
    printed = run("gin_tudataset.py", "--root", str(tmp_path), "--name", "MUTAG", *small)
    assert numbers(r"MUTAG: ([\d.]+) %", printed)[0] > 66  # the share of the larger class in %


def test_classes_of_different_sizes_are_told_apart_as_well_as_by_pyg(run: Run, shared_data: Path, tmp_path: Path):
    skip_without("class_imbalance_tudataset.py")
    shutil.copytree(shared_data / "tu/MUTAG", tmp_path / "MUTAG")
    printed = run("class_imbalance_tudataset.py", "--root", str(tmp_path), "--seeds", "3", "--epochs", "30")
    (by_pyg, by_popgeo), scores = numbers(r"accuracy ([\d.]+)", printed), numbers(r"macro F1 ([\d.]+)", printed)
    assert min(by_pyg, by_popgeo, *scores) > 0.75  # always the larger class: accuracy 0.66, macro F1 0.4
    assert abs(by_pyg - by_popgeo) < 0.07
    assert len(numbers(r"training ([\d.]+) s", printed)) == 2


def test_schnet_trains_on_qm9(run: Run, shared_data: Path, tmp_path: Path):
    write_qm9(shared_data / "qm9.npz", tmp_path, num_molecules=300)
    printed = run("schnet_qm9.py", "--root", str(tmp_path), "--epochs", "1", "--valid", "100")
    assert numbers(r"valid MAE ([\d.]+) eV", printed)[0] < 1.5


def test_gps_is_trained_on_zinc_from_its_raw_root(run: Run, shared_data: Path, tmp_path: Path):
    write_zinc(shared_data / "zinc12k" / "zinc12k.npz", tmp_path, num_molecules=48)
    small = ("--epochs", "2", "--channels", "8", "--layers", "1", "--batch-size", "12", "--biased")
    printed = run("gps_zinc.py", "--root", str(tmp_path), *small)
    assert len(numbers(r"valid ([\d.]+)", printed)) == 2
    assert numbers(r"test MAE ([\d.]+) after 2 epochs", printed)[0] < 4


def test_gps_plus_plus_is_trained_in_the_packs_of_its_report(run: Run, shared_data: Path):
    pytest.importorskip("rdkit", reason="rdkit is not installed: pip install '.[molecules]' in a clone")
    small = ("--molecules", "40", "--budget", "0.001", "--channels", "8", "--layers", "1", "--packs", "2")
    printed = run("gps_plus_plus_pcqm.py", "--data", str(shared_data / "pcqm" / "pcqm4mv2_2k.csv.gz"), *small)
    assert "61 nodes, 120 edges, 9 graphs" in printed
    assert 0 < numbers(r"held out ([\d.]+) eV", printed)[0] < 6
    assert "0% without a rule" in printed


def test_gps_plus_plus_in_stages_is_what_it_is_on_one_ipu_and_its_plan_has_a_page(
    run: Run, shared_data: Path, tmp_path: Path
):
    pytest.importorskip("rdkit", reason="rdkit is not installed: pip install '.[molecules]' in a clone")
    small = ("--molecules", "30", "--channels", "8", "--layers", "2", "--accumulate", "3", "--replicas", "2")
    small += ("--steps", "2", "--stages", "2", "--plan-channels", "8", "--plan-layers", "2", "--plan-accumulate", "2")
    where = ("--data", str(shared_data / "pcqm" / "pcqm4mv2_2k.csv.gz"), "--page", str(tmp_path / "new" / "plan.html"))
    printed = run("pipeline_gps.py", *small, *where)
    assert "losses 0.0e+00 eV, weights 0.0e+00" in printed
    assert "2 x Bow x 2 replicas" in printed
    assert "<h1>GPS++ on 4 Bow IPUs</h1>" in (tmp_path / "new" / "plan.html").read_text()


@pytest.mark.filterwarnings("ignore")  # PyG's warnings about atoms that rdkit cannot read
def test_one_trunk_is_trained_on_three_datasets(run: Run, shared_data: Path, tmp_path: Path):
    pytest.importorskip("rdkit", reason="rdkit is not installed: pip install '.[molecules]' in a clone")
    (tmp_path / "QM9").mkdir()
    write_qm9(shared_data / "qm9.npz", tmp_path / "QM9", num_molecules=60)
    write_zinc(shared_data / "zinc12k" / "zinc12k.npz", tmp_path / "ZINC", num_molecules=20)
    raw = tmp_path / "molnet" / "tox21" / "raw"
    raw.mkdir(parents=True)
    lines = gzip.decompress((shared_data / "tox21" / "tox21.csv.gz").read_bytes()).splitlines()[:61]
    (raw / "tox21.csv").write_bytes(b"\n".join(lines))
    small = ("--epochs", "1", "--channels", "8", "--layers", "1", "--batch-size", "20")
    printed = run("multitask_toymix.py", "--root", str(tmp_path), *small)
    assert numbers(r"test QM9 MAE ([\d.]+)", printed)[0] < 3
    assert numbers(r"test ZINC MAE ([\d.]+)", printed)[0] < 3
    assert re.search(r"losses qm9 [\d.]+, tox21 [\d.]+, zinc [\d.]+;", printed)


def write_zinc(source: Path, root: Path, num_molecules: int) -> None:
    """Write a root of PyG's ZINC with the first molecules of each split, in PyG's processed form."""
    with np.load(source) as held:
        arrays = {name: held[name] for name in held.files}
    atoms, edges = (np.concatenate([[0], arrays[f"num_{kind}"].cumsum(dtype=int)]) for kind in ("atoms", "edges"))
    (root / "raw").mkdir(parents=True)
    (root / "subset" / "processed").mkdir(parents=True)
    for split, first in (("train", 0), ("val", 10_000), ("test", 11_000)):
        molecules = []
        for i in range(first, first + num_molecules):
            of_atoms, of_edges = slice(atoms[i], atoms[i + 1]), slice(edges[i], edges[i + 1])
            molecules.append(
                Data(
                    x=torch.from_numpy(arrays["atom_type"][of_atoms].astype(int)).unsqueeze(1),
                    edge_index=torch.from_numpy(arrays["edge_index"][:, of_edges].astype(int)),
                    edge_attr=torch.from_numpy(arrays["bond_type"][of_edges].astype(int)),
                    y=torch.from_numpy(arrays["y"][i : i + 1]),
                )
            )
        data, slices = InMemoryDataset.collate(molecules)
        torch.save((data.to_dict(), slices, Data), root / "subset" / "processed" / f"{split}.pt")
        for suffix in ("pickle", "index"):
            (root / "raw" / f"{split}.{suffix}").touch()


def write_qm9(source: Path, root: Path, num_molecules: int) -> None:
    """Write a root of PyG's QM9 with the first molecules of the shared file, in PyG's processed form."""
    with np.load(source) as held:
        ends, bonds = (np.cumsum(held[f"num_{kind}"][:num_molecules], dtype=int) for kind in ("atoms", "bonds"))
        parts = [np.split(held[name][: ends[-1]], ends[:-1]) for name in ("z", "pos")]
        parts.append(np.split(held["bond"][: bonds[-1]].astype(int), bonds[:-1]))
        molecules = [
            Data(
                z=torch.from_numpy(z.astype(int)),
                pos=torch.from_numpy(pos),
                edge_index=torch.from_numpy(np.concatenate([bond[:, :2], bond[:, 1::-1]]).T),
                edge_attr=torch.eye(4)[np.tile(bond[:, 2], 2)],
                y=torch.from_numpy(y[None]),
            )
            for z, pos, bond, y in zip(*parts, held["y"][:num_molecules], strict=True)
        ]
    for name in ("gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt", "qm9_v3.pt"):
        (root / "raw").mkdir(exist_ok=True)
        (root / "raw" / name).touch()
    (root / "processed").mkdir()
    data, slices = InMemoryDataset.collate(molecules)
    torch.save((data.to_dict(), slices, Data), root / "processed" / "data_v3.pt")


def test_replicas_train_without_other_processes_too(run: Run):
    small = ("--molecules", "300", "--channels", "8", "--epochs", "3")
    losses = numbers(r"loss ([\d.]+) eV", run("several_processes.py", *small))
    assert len(losses) == 3
    assert losses[2] < losses[0]


@pytest.mark.parametrize(
    ("path", "choices"),
    [("lightning_schnet.py", ("--epochs", "2")), ("accelerate_gin.py", ("--epochs", "2"))],
    ids=["lightning", "accelerate"],
)
@pytest.mark.filterwarnings("ignore")
def test_under_a_trainer_the_gap_is_learned(path: str, choices: tuple[str, ...], run: Run, tmp_path: Path):
    skip_without(path)
    printed = run(path, "--molecules", "600", "--channels", "24", "--out", str(tmp_path / "run"), *choices)
    errors = numbers(r"held-out error ([\d.]+) eV", printed)
    assert len(errors) == 2
    assert min(errors) < 0.9 * numbers(r"predicting the mean: ([\d.]+) eV", printed)[0]


def test_forces_of_ethanol_are_learned_and_padding_touches_none(run: Run, shared_data: Path):
    small = ("--epochs", "2", "--frames", "200", "--channels", "24", "--data", str(shared_data / "md"))
    printed = run("forces_ethanol.py", *small, "--beside", "pyg")
    of_mean = numbers(r"predicting the mean: energy [\d.]+ eV, forces ([\d.]+) eV/A", printed)
    learned = numbers(r"epoch 2: test error of energy [\d.]+ eV, forces ([\d.]+) eV/A", printed)
    assert learned[0] < 0.7 * of_mean[0]
    by_pyg = numbers(r"PyG: test error of energy [\d.]+ eV, forces ([\d.]+) eV/A after [\d.]+ minutes", printed)
    assert by_pyg[-1] == pytest.approx(learned[0], rel=0.1)
    assert numbers(r"padding atoms: ([\d.]+) eV/A", printed) == [0, 0]
    assert numbers(r"by that padding: (\S+) eV/A", printed)[0] < 1e-5
    assert re.search(r"an update: [\d.]+ ms .* modelled Bow IPU [\d,]{7,} cycles", printed)


def test_the_files_that_others_publish_are_read_as_they_are(tmp_path: Path):
    draw = np.random.default_rng(0)
    kept = {"coords": draw.normal(size=(30, 9, 3)), "forces": draw.normal(size=(30, 9, 3))}
    charges = np.array([6, 6, 8, 1, 1, 1, 1, 1, 1], np.uint8)
    np.savez(tmp_path / "rmd17_ethanol.npz", nuclear_charges=charges, energies=-97_000.0 + draw.normal(size=30), **kept)
    frames, mean = runpy.run_path(str(EXAMPLES / "forces_ethanol.py"))["read"](tmp_path, "train")
    assert mean == pytest.approx(-97_000 * 0.0433641, abs=1)
    assert len(frames) == 30
    assert frames[0].z.tolist() == charges.tolist()
    (tmp_path / "umls").mkdir()
    for part, line in {"train": "a\tr\tb\nb\ts\tc\n", "valid": "c\tr\ta\n", "test": "b\tr\ta\n"}.items():
        (tmp_path / "umls" / f"{part}.txt").write_text(line)
    splits = runpy.run_path(str(EXAMPLES / "knowledge_graph.py"))["read"](tmp_path, "umls")
    assert {name: part.tolist() for name, part in splits.items()} == {
        "train": [[0, 0, 1], [1, 1, 2]], "valid": [[2, 0, 0]], "test": [[1, 0, 0]]
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # warnings of transformers
def test_gpt2_is_planned_over_stages_without_its_weights(run: Run):
    skip_without("gpt2_on_ipus.py")
    size = ["--layers", "2", "--width", "64", "--heads", "2", "--sequence", "16"]
    printed = run("gpt2_on_ipus.py", *size, "--stages", "2", "--accumulate", "4")
    assert "4 micro-batches, lock_step, recomputed, on 2 x GC200 x 2 replicas" in printed
    assert re.search(r"[\d,.]+ samples/s modelled on 4 IPUs", printed)


def test_events_of_students_are_predicted_and_baselines_see_the_same(run: Run, shared_data: Path):
    small = ("--name", "college", "--events", "3000", "--epochs", "2", "--channels", "16", "--neighbors", "4")
    printed = run("tgn_link_prediction.py", "--root", str(shared_data / "temporal"), *small)
    assert numbers(r"popularity: AP ([\d.]+)", printed)[0] > 0.6
    assert numbers(r"TGN of the best epoch: AP ([\d.]+)", printed)[0] > 0.55


def test_links_of_entities_never_seen_are_ranked(run: Run, shared_data: Path):
    small = ("--links", "150", "--epochs", "2", "--channels", "8", "--layers", "2", "--batch-size", "32")
    printed = run("nbfnet_inductive.py", "--root", str(shared_data / "kg/inductive"), *small)
    assert numbers(r"epoch 2: loss ([\d.]+)", printed)[0] < numbers(r"epoch 1: loss ([\d.]+)", printed)[0]
    assert numbers(r"Hits@10 of 50 negatives ([\d.]+)", printed)[0] > 0.2


def test_the_tail_of_a_converse_ranks_as_the_head():
    both_ways = runpy.run_path(str(EXAMPLES / "knowledge_graph.py"))["both_ways"]
    assert both_ways(torch.tensor([[0, 1, 2], [3, 0, 3]]), 2).tolist() == [[0, 1, 2], [3, 0, 3], [2, 3, 0], [3, 2, 3]]
    torch.manual_seed(0)
    triples = torch.stack([torch.randint(n, (20,)) for n in (9, 2, 9)], dim=1)
    model, twice = ComplEx(9, 2, 4), ComplEx(9, 4, 4)
    relations = {"rel_emb.weight": 1, "rel_emb_im.weight": -1}  # the converse of r is its conjugate
    twice.load_state_dict(
        {n: torch.cat([w, relations[n] * w]) if n in relations else w for n, w in model.state_dict().items()}
    )
    heads, tails = (rank_entities(model, triples, KnownTriples(triples, 9, 2, side)) for side in ("head", "tail"))
    found = rank_entities(twice, both_ways(triples, 2), KnownTriples(both_ways(triples, 2), 9, 4, "tail"))
    assert found.realistic.tolist() == Ranks.join(tails, heads).realistic.tolist()


@pytest.mark.parametrize("converses", ["--reciprocal", "--no-reciprocal"])
def test_a_knowledge_graph_is_completed_the_better_the_longer(run: Run, shared_data: Path, converses: str):
    small = ("--root", str(shared_data / "kg"), "--dataset", "umls", "--channels", "16", "--epochs", "3")
    printed = run("knowledge_graph.py", *small, "--shards", "2", "--lr", "0.3", converses)
    curve = numbers(r"valid MRR ([\d.]+)", printed)
    assert len(curve) == 3
    assert curve[0] < curve[2]
    assert numbers(r"test MRR ([\d.]+)", printed)[0] > 0.4


@pytest.mark.filterwarnings("ignore")  # warnings of scikit-learn
def test_digits_are_learned_by_the_program_for_ipus_as_by_the_one_in_pytorch(run: Run):
    skip_without("digits_poptorch.py")
    printed = run("digits_poptorch.py", "--epochs", "2", "--device-iterations", "5")
    in_pytorch, in_poptorch = numbers(r"([\d.]+) % of 397 held-out digits", printed)
    assert min(in_pytorch, in_poptorch) > 85
    assert re.search(r"Options.deviceIterations +honoured", printed)
