"""Compiles what `torch_geometric.nn` has, as its users write it, and compares each with eager PyTorch.

Each line of `LINES` is a module, or a function, and what it is called with; letters represent the tensors of a small
batch with loops, edges given twice and padding (`batch_of`). A line passes where three steps of Adam, on two batches in
turn, have eager's losses and end with eager's weights, and where two calls in evaluation mode have eager's results, in
float64. `--write` puts the table into the guide of models.

    python scripts/pyg_table.py [--only NAME ...] [--write]
"""

import argparse
import contextlib
import copy
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch_geometric
import torch_geometric.nn as pyg
import torch_geometric.nn.models as pyg_models
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import popgeo
from popgeo.compat import torch_cluster
from popgeo.ipu import DynamicShapeError

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "models.md"
BEGIN, END = "<!-- made by scripts/pyg_table.py -->", "<!-- until here -->"
LINES = (Path(__file__).parent / "pyg_lines.txt").read_text().splitlines()
NODES, EDGES, GRAPHS = 10, 18, 3


def batch_of(seed: int) -> SimpleNamespace:
    """Two graphs of four nodes and one of padding: edges with loops among them, some twice, the last four padding."""
    draw = torch.Generator().manual_seed(seed)
    half = [torch.randint(4 * g, 4 * g + 4, (2, 5), generator=draw) for g in range(2)]
    loops = torch.tensor([[1, 6, 6, 2 + seed], [1, 6, 6, 2 + seed]])
    padding = torch.tensor([[8, 9, 9, 9], [9, 9, 9, 9]])
    adj = (torch.rand(2, 5, 5, generator=draw) > 0.4).double()
    return SimpleNamespace(
        x=torch.randn(NODES, 8, generator=draw),
        ei=torch.cat([*half, loops, padding], 1),
        ew=torch.rand(EDGES, generator=draw) + 0.1,
        ea=torch.rand(EDGES, 3, generator=draw),
        et=torch.randint(3, (EDGES,), generator=draw),
        nt=torch.randint(3, (NODES,), generator=draw),
        pos=torch.randn(NODES, 3, generator=draw),
        normal=nn.functional.normalize(torch.randn(NODES, 3, generator=draw)),
        z=torch.randint(1, 9, (NODES,), generator=draw),
        y=torch.randint(4, (NODES,), generator=draw),
        mask=torch.rand(NODES, generator=draw) > 0.5,
        b=torch.tensor([0] * 4 + [1] * 4 + [2] * 2),
        dense=torch.randn(2, 5, 8, generator=draw),
        adj=((adj + adj.transpose(1, 2)) > 0).double(),
        present=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
        hyper=torch.stack([torch.randint(NODES, (EDGES,), generator=draw), torch.randint(4, (EDGES,), generator=draw)]),
        faces=torch.randint(NODES, (2, 4 * NODES), generator=draw),
        t=torch.rand(NODES, generator=draw),
    )


class Line(nn.Module):
    """What a line of the table names, behind a layer, so that gradients have to come through it."""

    def __init__(self, made: str, called: str) -> None:
        super().__init__()
        self.name, self.lin, self.called = made, nn.Linear(8, 8), compile(f"layer({called})", "<table>", "eval")
        layer = eval(made, NAMES)
        self.layer = layer if isinstance(layer, nn.Module) else None

    def forward(self, **batch: Any) -> Any:
        layer = self.layer or getattr(pyg, self.name)  # what is in while capturing is found by name
        return eval(self.called, {**NAMES, **batch, "x": self.lin(batch["x"]), "layer": layer})


class Loss(nn.Module):
    """A loss that treats no element of a result like another."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line

    def forward(self, **batch: Any) -> Tensor:
        made = [part for part in tree_leaves(self.line(**batch)) if isinstance(part, Tensor)]
        parts = [part for part in made if part.is_floating_point() and part.requires_grad]
        uneven = [(p * torch.linspace(-1, 1, p.numel()).view(p.shape)).sum() + p.square().mean() for p in parts]
        return torch.stack(uneven).sum()


@contextlib.contextmanager
def search_in_python() -> Iterator[None]:
    """Where pyg-lib is missing, PyG searches for neighbors in plain Python, so that eager has a result."""
    if torch_geometric.typing.WITH_KNN:
        yield
        return
    places = []
    torch_geometric.typing.WITH_KNN = torch_geometric.typing.WITH_RADIUS = True
    for name in ("knn", "knn_graph", "radius", "radius_graph", "nearest"):
        original = getattr(pyg.pool, name)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is original:
                places.append((module, name, original))
                setattr(module, name, getattr(torch_cluster, name))
    try:
        yield
    finally:
        torch_geometric.typing.WITH_KNN = torch_geometric.typing.WITH_RADIUS = False
        for place in places:
            setattr(*place)


NAMES: dict[str, Any] = {**vars(pyg_models), **vars(pyg), "torch": torch, "nn": nn, "N": NODES, "G": GRAPHS}
NAMES.update(Sequential=nn.Sequential, Data=torch_geometric.data.Data, tgn=torch_geometric.nn.models.tgn)
NAMES["meta"] = (["a", "b"], [("a", "to", "b"), ("b", "of", "a")])
NAMES["two"] = lambda x, ei: ({"a": x, "b": x.cos()}, {("a", "to", "b"): ei, ("b", "of", "a"): ei.flip(0)})


def check(made: str, called: str) -> str:
    """What becomes of a line: `equal`, `refused: ...`, `differs: ...`, or `no reference: ...` where eager fails."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    batches = [vars(batch_of(seed)) for seed in (0, 1)]
    try:
        line = Line(made, called)
        for batch in batches:
            copy.deepcopy(line)(**batch)
    except Exception as error:
        return f"no reference: {type(error).__name__}: {str(error).splitlines()[0]}"
    try:
        trained = _train(line, batches)
        return trained or _evaluate(line, batches) or "equal"
    except (DynamicShapeError, ValueError) as error:
        return f"refused: {error}"
    except Exception as error:
        return f"unclear: {type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        torch.set_default_dtype(torch.float32)


def _train(line: Line, batches: list[dict[str, Any]]) -> str:
    eager, compiled = (Loss(copy.deepcopy(line)) for _ in range(2))
    if not isinstance(eager(**batches[0]), Tensor):
        return ""  # nothing in it has a gradient
    eager, compiled = (Loss(copy.deepcopy(line)) for _ in range(2))
    steps = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (eager, compiled)]
    step = popgeo.compile_step(compiled, steps[1])
    for number in range(3):
        batch = batches[number % 2]
        steps[0].zero_grad()
        expected = eager(**batch)
        expected.backward()
        steps[0].step()
        if not torch.allclose(step(**batch), expected.detach(), rtol=1e-6, atol=1e-8, equal_nan=True):
            return f"differs: loss of step {number}"
    pairs = zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True)
    far = [name for (name, old), new in pairs if not torch.allclose(old, new, rtol=1e-5, atol=1e-7, equal_nan=True)]
    return f"differs: {far[0]}" if far else ""


def _evaluate(line: Line, batches: list[dict[str, Any]]) -> str:
    line.eval()
    step = popgeo.compile_forward(copy.deepcopy(line))
    for number, batch in enumerate(batches):
        with torch.no_grad():
            expected, found = line(**batch), step(**batch)
        for one, other in zip(tree_leaves(expected), tree_leaves(found), strict=True):
            if isinstance(one, Tensor) and not torch.allclose(one, other, rtol=1e-6, atol=1e-8, equal_nan=True):
                return f"differs: result {number} in evaluation mode"
    return ""


def lines(only: list[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """The lines of the table: name, how it is made, what it is called with."""
    for text in LINES:
        if text.strip() and not text.startswith("#"):
            made, _, called = (part.strip() for part in text.partition("|"))
            name = re.sub(r"^lambda[^:]*: *", "", made)
            name = re.split(r"\W", name)[0]
            if not only or name in only:
                yield name, made, called


def missing() -> set[str]:
    """The public names of `torch_geometric.nn` that no line has."""
    from torch_geometric.nn import aggr, attention, conv, dense, encoding, functional, kge, norm, pool, unpool

    rooms = (aggr, attention, conv, dense, encoding, functional, kge, norm, pool, unpool, pyg_models)
    names = {name for room in rooms for name in getattr(room, "__all__", [])}
    return names - {name for name, _, _ in lines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="these classes and functions alone")
    parser.add_argument("--write", action="store_true", help="put the table into the guide of models")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[tuple[str, str]]] = {}
    for name, made, called in lines(given.only):
        with search_in_python():
            result = check(made, called)
        found.setdefault(name, []).append((f"{made} | {called}", result))
        if given.only or not result.startswith(("equal", "no ref")):
            print(f"{made} | {called}\n    {result[:600]}", flush=True)
    counts = Counter(result.split(":")[0] for results in found.values() for _, result in results)
    entries = Counter(kind_of([result for _, result in results]) for results in found.values())
    print("lines", dict(counts), "entries", dict(entries))
    if given.write:
        before, _, rest = GUIDE.read_text().partition(BEGIN)
        GUIDE.write_text(before + BEGIN + "\n" + as_page(found) + END + rest.partition(END)[2])
    sys.exit(counts["differs"] + counts["unclear"] > 0)


def as_page(found: dict[str, list[tuple[str, str]]]) -> str:
    """The table as Markdown: what compiles as it is, what in part, and what does not, with the remedy of each."""
    kinds: dict[str, list[str]] = {}
    for name, results in found.items():
        kinds.setdefault(kind_of([result for _, result in results]), []).append(name)
    tried = [name for name in found if name not in kinds.get("no reference", [])]
    compiled = len(kinds.get("equal", [])) + len(kinds.get("in part", []))
    text = f"Of {len(tried)} layers, functions and models {compiled} compile, each equal to eager PyTorch.\n"
    text += "\nThese compile in every tested form: " + _names(kinds.get("equal", [])) + ".\n"
    for kind, says in (("in part", "compiles in part"), ("refused", "does not compile")):
        text += f"\n| {says} | rejected form | remedy |\n|---|---|---|\n"
        for name in kinds.get(kind, []):
            for line, result in found[name]:
                if result != "equal":
                    remedy = result.partition("Remedy: ")[2] or re.sub(
                        r"\S*site-packages/", "", result.partition(": ")[2]
                    )
                    text += f"| `{name}` | `{line.replace('|', 'of')}` | {remedy.rstrip('.')} |\n"
    return (
        text
        + "\nNot tested, because they need a library that was not installed: "
        + _names(kinds.get("no reference", []))
        + ".\n"
    )


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kind_of(results: list[str]) -> str:
    """What to say of a class of which several lines were tried."""
    kinds = {result.split(":")[0] for result in results}
    if kinds == {"equal"}:
        return "equal"
    return "in part" if "equal" in kinds else sorted(kinds)[-1]


if __name__ == "__main__":
    main()
