"""Every notebook runs from top to bottom, needs only packages of `NEEDS` and of popgeo's extra, and has outputs."""

import ast
import functools
import json
import re
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from popgeo.capture.operations import OPERATIONS
from tests.support import quick_python

REASON = "the notebooks' tools are not installed: pip install '.[notebooks]' in a clone"
nbformat = pytest.importorskip("nbformat", reason=REASON)
pytest.importorskip("nbclient", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)

REPOSITORY = Path(__file__).resolve().parents[2]
COMPAT = sorted(
    (REPOSITORY / "notebooks" / "compat").glob("*.ipynb")
)  # notebooks with PopTorch's names; they need no pictures
NOTEBOOKS = [*sorted((REPOSITORY / "notebooks").glob("*.ipynb")), *COMPAT]
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# Optional imports, inside a `try` of their cell.
MAY_BE_ABSENT = {"torch_scatter"}
# Packages of a notebook from a separate extra; without them the notebook is not run.
NEEDS = {"11_mace_at_fixed_shape": ["mace", "e3nn", "ase"]}
OLD_NAMES = {"poptorch", "poptorch_geometric"}  # importable after compat.enable()
# Smaller settings of the longest training runs; every cell still runs.
SMALLER = {
    "01_fixed_size_batches": {"MOLECULES": 400},
    "03_schnet_qm9": {"MOLECULES": 400, "EPOCHS": 1},
    "04_gin_and_gcn": {"MOLECULES": 500, "EPOCHS": 1, "SEEDS, UPDATES": [1, 20]},
    "05_scatter_gather_benchmarks": {
        "PUBLISHED": str(REPOSITORY / "benchmarks/data/bow_microbenchmarks.csv"),
        "SECONDS": 0,
        "NUM_SHOWN": {"gather": 4, "scatter_add": 4, "schnet_block": 3},
    },
    "06_inside_the_simulated_ipu": {"SIZES": [72, 144]},
    "07_large_graphs": {"NODES": 2000, "EPOCHS": 1},
    "08_transformers_and_multitask": {"MOLECULES": 60, "EPOCHS": 1},
    "09_events_and_knowledge": {"EVENTS": 1000, "TGN_EPOCHS": 1, "QUESTIONS": 12, "EMBEDDING_EPOCHS": 2},
    "10_many_ipus": {"LAYERS": 4, "WIDTH": 64, "TOKENS": 16, "COUNTS": [1, 4, 64]},
    "11_mace_at_fixed_shape": {"STRUCTURES": 40, "EPOCHS": 1, "STEPS": 5, "BATCHES": 2},
}


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def imported(source):
    """Yield the top-level packages that a cell imports; skip IPython's magic lines."""
    tree = ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 2


@pytest.fixture(scope="module")
def quick_kernel(tmp_path_factory):
    """Return the folder of a kernel with torch and popgeo already imported."""
    folder = tmp_path_factory.mktemp("jupyter")
    coarse = "--InlineBackend.print_figure_kwargs={'bbox_inches': None, 'dpi': 20}"  # pictures of low resolution
    argv = [*quick_python.command(), "-m", "ipykernel_launcher", "-f", "{connection_file}", coarse]
    kernel = folder / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    return folder


@each_notebook
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch, quick_kernel):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import run_notebooks

    for package in NEEDS.get(path.stem, ()):
        if find_spec(package) is None:
            pytest.skip(f"{path.name} needs {package}, which is not installed")
    monkeypatch.setenv("JUPYTER_PATH", str(quick_kernel))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one thread, because pytest's workers share the cores
    notebook = run_notebooks.execute(path, tmp_path, SMALLER.get(path.stem))  # raises the error of a cell
    assert list(tmp_path.iterdir()) == [], "a notebook leaves no files behind"
    texts = [
        o.text for c in notebook.cells for o in c.get("outputs", ()) if o.output_type == "stream" and o.name == "stderr"
    ]
    assert not [text for text in texts if "Warning" in text]


@each_notebook
def test_a_committed_notebook_has_been_run_in_order_without_an_error(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert path in COMPAT or sum("image/png" in output.get("data", ()) for output in outputs) >= 3
    assert path.stat().st_size < 400_000


@functools.cache
def distributions():
    """Return the distributions of each package; cached, since the search takes 0.1 s."""
    return packages_distributions()


@each_notebook
def test_a_notebook_imports_only_what_comes_with_popgeo(path):
    declared = re.findall(r'^ +"([A-Za-z_]+)>=', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert "torch" in declared
    provided = {name for name, by in distributions().items() if {d.lower().replace("-", "_") for d in by} & {*declared}}
    allowed = provided | {"popgeo", "matplotlib"} | set(sys.stdlib_module_names)  # seaborn brings matplotlib
    found = {name for cell in code_cells(path) for name in imported(cell.source)}
    assert found - allowed - MAY_BE_ABSENT - {*NEEDS.get(path.stem, ())} == (OLD_NAMES if path in COMPAT else set())


@pytest.mark.parametrize("path", COMPAT, ids=lambda path: path.stem)
def test_one_cell_of_an_old_notebook_is_new(path):
    first, *others = code_cells(path)
    assert first.source == "from popgeo import compat\n\ncompat.enable()"
    assert not [cell for cell in others if "popgeo.compat" in cell.source or "import compat" in cell.source]


@each_notebook
def test_a_notebook_names_no_place_of_the_machine_it_was_run_on(path):
    assert not re.search(r"/(home|root|work|tmp|opt|usr)/", path.read_text())


@each_notebook
def test_a_stored_output_needs_no_scrolling_and_holds_no_warning_or_progress_bar(path):
    outputs = [output for cell in code_cells(path) for output in cell.outputs]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    texts = [o.get("text", "") for o in outputs] + [o.get("data", {}).get("text/plain", "") for o in outputs]
    assert not [line for text in texts for line in text.splitlines() if len(line) > 100]


def test_cleaning_keeps_a_warning_and_takes_away_finished_bars_and_long_lines(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import run_notebooks
    from nbformat.v4 import new_output

    bars = (
        "epochs: 100%|████| 12/12 [loss 0.3]\nmodels: 100%|███| 2/2\ncompiling: 533 operations [00:03, 138.50 op/s]\n"
        "popgeo: compiling Step for its first call with these shapes\n"
    )
    warning = new_output("stream", name="stderr", text=bars + "UserWarning: too few graphs\n")
    wide = new_output("stream", name="stdout", text="one " * 30 + "99 % full\n")
    kept = run_notebooks.readable([new_output("stream", name="stderr", text=bars), warning, wide])
    assert [output.text for output in kept] == [
        "UserWarning: too few graphs\n",
        "one " * 24 + "one\n    " + "one " * 5 + "99 % full\n",
    ]


@each_notebook
def test_the_families_of_committed_reports_are_those_of_today(path):
    texts = [o.text for cell in code_cells(path) for o in cell.outputs if o.output_type == "stream"]
    tables = re.findall(r"^by family.*?\n(.*?)^by block", "\n".join(texts), re.MULTILINE | re.DOTALL)
    named = {line.split()[0] for table in tables for line in table.splitlines() if not line.startswith("  and ")}
    assert named <= {row.family for row in OPERATIONS.values()}
