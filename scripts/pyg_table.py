"""Compile the layers, functions and models of `torch_geometric.nn`, and compare each with eager PyTorch.

Each line of `LINES` has a module or a function, and its arguments. Letters represent the tensors of a small batch
with self-loops, duplicate edges and padding (`batch_of`). A line passes if three steps of Adam on two batches in turn
have the losses and the final weights of eager PyTorch, and two calls in evaluation mode have its results, in float64.
`--write` puts the table into the guide "Models".

    python scripts/pyg_table.py [--only NAME ...] [--write]
"""

import argparse
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
import popgeo.extensions  # PyG's searches, so that eager PyTorch has a result
from popgeo.ipu import DynamicShapeError

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "models.md"
BEGIN, END = "<!-- made by scripts/pyg_table.py -->", "<!-- until here -->"
LINES = (Path(__file__).parent / "pyg_lines.txt").read_text().splitlines()
NODES, EDGES, GRAPHS = 10, 18, 3
LETTERS_OF_A_CALL = """
Two tables list the other names, with the calls that raise an error. In these calls `x` represents the node features,
`ei` represents `edge_index`, `ea` `edge_attr`, `b` `batch`, and `G` the number of graphs.
"""


def batch_of(seed: int) -> SimpleNamespace:
    """Return two graphs of four nodes and one of padding, with self-loops, duplicate edges and four padding edges."""
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
    """A module that runs the call of one line after a linear layer, so that gradients pass through the call."""

    def __init__(self, made: str, called: str) -> None:
        super().__init__()
        self.name, self.lin, self.called = made, nn.Linear(8, 8), compile(f"layer({called})", "<table>", "eval")
        layer = eval(made, NAMES)
        self.layer = layer if isinstance(layer, nn.Module) else None

    def forward(self, **batch: Any) -> Any:
        layer = self.layer or getattr(pyg, self.name)  # by name: popgeo replaces functions of PyG during capture
        return eval(self.called, {**NAMES, **batch, "x": self.lin(batch["x"]), "layer": layer})


class Loss(nn.Module):
    """A loss in which each element of a result has a different weight; None if no result has a gradient."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line

    def forward(self, **batch: Any) -> Tensor | None:
        made = [part for part in tree_leaves(self.line(**batch)) if isinstance(part, Tensor)]
        parts = [part for part in made if part.is_floating_point() and part.requires_grad]
        uneven = [(p * torch.linspace(-1, 1, p.numel()).view(p.shape)).sum() + p.square().mean() for p in parts]
        return torch.stack(uneven).sum() if uneven else None


NAMES: dict[str, Any] = {**vars(pyg_models), **vars(pyg), "torch": torch, "nn": nn, "N": NODES, "G": GRAPHS}
NAMES.update(Sequential=nn.Sequential, Data=torch_geometric.data.Data, tgn=torch_geometric.nn.models.tgn)
NAMES["meta"] = (["a", "b"], [("a", "to", "b"), ("b", "of", "a")])
NAMES["two"] = lambda x, ei: ({"a": x, "b": x.cos()}, {("a", "to", "b"): ei, ("b", "of", "a"): ei.flip(0)})


def check(made: str, called: str) -> str:
    """Return `equal`, `refused: ...`, `differs: ...`, or, if eager PyTorch fails, `no reference: ...`."""
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
    if eager(**batches[0]) is None:
        return ""  # no result has a gradient
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
    """Yield each line of the table as a name, an expression that makes the module, and its arguments."""
    for text in LINES:
        if text.strip() and not text.startswith("#"):
            made, _, called = (part.strip() for part in text.partition("|"))
            name = re.sub(r"^lambda[^:]*: *", "", made)
            name = re.split(r"\W", name)[0]
            if not only or name in only:
                yield name, made, called


def missing() -> set[str]:
    """Return the public names of `torch_geometric.nn` that no line tries."""
    from torch_geometric.nn import aggr, attention, conv, dense, encoding, functional, kge, norm, pool, unpool

    rooms = (aggr, attention, conv, dense, encoding, functional, kge, norm, pool, unpool, pyg_models)
    names = {name for room in rooms for name in getattr(room, "__all__", [])}
    return names - {name for name, _, _ in lines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names to try; default: all")
    parser.add_argument("--write", action="store_true", help="write the table into docs/guides/models.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[tuple[str, str]]] = {}
    for name, made, called in lines(given.only):
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
    """Return the table as Markdown: names that compile, in part or not, with the remedy for each rejected call."""
    kinds: dict[str, list[str]] = {}
    for name, results in found.items():
        kinds.setdefault(kind_of([result for _, result in results]), []).append(name)
    tried = [name for name in found if name not in kinds.get("no reference", [])]
    compiled = len(kinds.get("equal", [])) + len(kinds.get("in part", []))
    text = f"{compiled} of {len(tried)} layers, functions and models compile, with the results of eager PyTorch.\n"
    text += "\nEvery call that was tried compiles: " + _names(kinds.get("equal", [])) + ".\n"
    text += LETTERS_OF_A_CALL
    for kind, heading in (("in part", "compiles in part"), ("refused", "does not compile")):
        text += f"\n| {heading} | rejected call | remedy |\n|---|---|---|\n"
        for name in kinds.get(kind, []):
            for line, result in found[name]:
                if result != "equal":
                    remedy = result.partition("Remedy: ")[2] or re.sub(
                        r"\S*site-packages/", "", result.partition(": ")[2]
                    )
                    text += f"| `{name}` | `{call_of(line)}` | {remedy.rstrip('.')} |\n"
    return text + "\nNot tried, because a library was not installed: " + _names(kinds.get("no reference", [])) + ".\n"


def call_of(line: str) -> str:
    """Return a line of the table, `made | called`, as the call in Python that it describes."""
    made, _, called = (part.strip() for part in line.partition("|"))
    return f"{made}({called})"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kind_of(results: list[str]) -> str:
    """Return one result for a name from the results of its lines."""
    kinds = {result.split(":")[0] for result in results}
    if kinds == {"equal"}:
        return "equal"
    return "in part" if "equal" in kinds else sorted(kinds)[-1]


if __name__ == "__main__":
    main()
