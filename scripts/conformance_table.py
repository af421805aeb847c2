"""Try every claim of `popgeo.testing` on the layers of PyG, popgeo and three frameworks, and write a page of the site.

    python scripts/conformance_table.py --group popgeo pyg --json found.json    # ten minutes
    python scripts/conformance_table.py --group potentials --json mace.json     # where MACE is installed, and so on
    python scripts/conformance_table.py --page found.json mace.json             # writes docs/conformance_table.md

Each is called as its users call it, on graphs in batches of fixed shape. A row of the table is a class or function. If
`scripts/pyg_lines.txt` has several lines for it, the script tries the line with most sizes as arguments. It leaves out
layers without batches of graphs: layers of dense tensors, of sampled walks, and of a fixed set of entities. Below the
table, the page has the messages of failed claims.
"""

import argparse
import ast
import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import potential_subjects
import torch
from pyg_table import LINES, NAMES
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import popgeo.nn
from popgeo.testing import ModelSubject, conformance
from popgeo.testing.claims import Status

PAGE = Path(__file__).resolve().parents[1] / "docs" / "conformance_table.md"
LETTERS = {"x", "ei", "ew", "ea", "et", "nt", "pos", "normal", "z", "y", "mask", "t", "b", "G", "N", "M", "nm", "em"}
IN_SPACE = ("translation", "rotation", "reflection", "extensive energy")
SECTIONS = ("# convolutions", "# aggregations", "# norms", "# pools", "# models")
OWN = """
GCN(8, 8, 2, 4, norm='batch_norm') | x, ei, batch=b, num_graphs=G, nodes_mask=nm, edges_mask=em
GIN(8, 8, 2, 4, norm='layer_norm') | x, ei, batch=b, num_graphs=G, nodes_mask=nm, edges_mask=em
GINE(8, 8, 2, 4, edge_dim=3) | x, ei, edge_attr=ea, batch=b, num_graphs=G, nodes_mask=nm, edges_mask=em
GraphSAGE(8, 8, 2, 4, readout='mean') | x, ei, batch=b, num_graphs=G, nodes_mask=nm, edges_mask=em
GPS(8, 8, 1, 4, conv='gin', heads=2, max_num_nodes=8) | x, ei, batch=b, num_graphs=G, nodes_mask=nm, edges_mask=em
SchNet(8, 8, 2, 4, cutoff=4.0, max_num_neighbors=7) | z, pos, b, num_graphs=G, nodes_mask=nm
PaiNN(8, 2, 6, 4.0) | z, pos, b, num_graphs=G, nodes_mask=nm
BatchNorm(8) | x, b, G, nm
GraphNorm(8) | x, b, G, nm
InstanceNorm(8) | x, b, G, nm
LayerNorm(8) | x, b, G, nm
AttentionalAggregation(nn.Linear(8, 1)) | x, b, G
"""


def graphs() -> list[Data]:
    """Return four small graphs with self-loops, duplicate edges and all attributes that lines of the table use."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for nodes in (4, 5, 3, 4):
        ends = torch.randint(nodes, (2, 2 * nodes), generator=draw)
        ends = torch.cat([ends, ends[:, :1], torch.tensor([[1], [1]])], 1)
        edges = ends.shape[1]
        made.append(
            Data(
                x=torch.randn(nodes, 8, generator=draw),
                edge_index=ends,
                edge_weight=torch.rand(edges, generator=draw) + 0.1,
                edge_attr=torch.rand(edges, 3, generator=draw),
                edge_type=torch.randint(3, (edges,), generator=draw),
                node_type=torch.randint(3, (nodes,), generator=draw),
                pos=torch.randn(nodes, 3, generator=draw),
                normal=nn.functional.normalize(torch.randn(nodes, 3, generator=draw)),
                z=torch.randint(1, 9, (nodes,), generator=draw),
                label=torch.randint(4, (nodes,), generator=draw),
                known=torch.rand(nodes, generator=draw) > 0.5,
                time=torch.rand(nodes, generator=draw),
            )
        )
    return made


def letters(batch: Batch) -> dict[str, Any]:
    """Return the tensors that the letters of a line represent."""
    masks = {"nm": batch.get("nodes_mask"), "em": batch.get("edges_mask"), "M": 64, "N": batch.num_nodes}
    return masks | {
        "x": batch.x, "ei": batch.edge_index, "ew": batch.edge_weight, "ea": batch.edge_attr, "et": batch.edge_type,
        "nt": batch.node_type, "pos": batch.pos, "normal": batch.normal, "z": batch.z, "y": batch.label,
        "mask": batch.known, "t": batch.time, "b": batch.batch, "G": batch.num_graphs,
    }  # fmt: skip


class Called(nn.Module):
    """A module that runs the call of one line after a linear layer, so that gradients pass through the call."""

    def __init__(self, made: str, called: str, group: str) -> None:
        super().__init__()
        layer = eval(made, NAMES_OF[group])
        self.lin, self.layer = nn.Linear(8, 8), layer if isinstance(layer, nn.Module) else None
        self.function, self.called, self.group = layer, called, group

    def forward(self, batch: Batch) -> Any:
        given = {**NAMES_OF[self.group], **letters(batch), "x": self.lin(batch.x)}
        made = eval(f"layer({self.called})", {**given, "layer": self.layer or self.function})
        return [part for part in (made if isinstance(made, tuple) else [made]) if isinstance(part, Tensor)]


NAMES_OF = {
    "pyg": {key: value for key, value in NAMES.items() if key not in LETTERS} | {"M": 64},
    "popgeo": {**{name: getattr(popgeo.nn, name) for name in dir(popgeo.nn)}, "nn": nn, "torch": torch},
}


def lines(texts: list[str], names: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield one line per class and function: the line with most sizes, of those whose letters are all known."""
    section, best = "# convolutions", dict[str, tuple[int, str, str]]()
    for text in texts:
        if text.startswith("#"):
            section = text
        elif text.strip() and section in SECTIONS:
            text = text.replace("elements=5", "elements=M").replace("max_num_nodes=5", "max_num_nodes=M")
            made, _, called = (part.strip() for part in text.partition("|"))
            asked = {node.id for node in ast.walk(ast.parse(f"f({called})")) if isinstance(node, ast.Name)}
            fits = (
                asked <= LETTERS | {"f", *names}
                and ":6]" not in called
                and "10" not in called
                and "(2, 10)" not in made
            )
            sized = ("=G" in called) + ("=M" in called)
            name = made.partition("(")[0]
            if fits and name.isidentifier() and sized >= best.get(name, (0,))[0]:
                best.setdefault(name, (sized, made, called))
                if sized > best[name][0]:
                    best[name] = (sized, made, called)
    yield from ((name, made, called) for name, (_, made, called) in best.items())


def subjects(group: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name and the factory of each subject of a group."""
    if group == "potentials":
        yield from potential_subjects.subjects()
        return
    for name, made, called in lines(OWN.splitlines() if group == "popgeo" else LINES, NAMES_OF[group]):
        yield f"popgeo.nn.{name}" if group == "popgeo" else name, functools.partial(subject, made, called, group)


def subject(made: str, called: str, group: str) -> ModelSubject:
    """Return the subject for one line of the table."""
    return ModelSubject(
        what=Called(made, called, group), graphs=tuple(graphs()), call=lambda model, batch: model(batch)
    )


def tried(make: Callable[[], Any], slow: bool, also: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return status and message of each claim; a single entry, `runs`, if the subject cannot be used."""
    torch.manual_seed(0)
    try:
        # The page has no smallest cases, so none are searched.
        report = conformance.check_conformance(make(), slow=slow, also=also, shrink_seconds=0.0)
    except Exception as error:
        return {"runs": ["cannot", f"{type(error).__name__}: {str(error).splitlines()[0]}"]}
    return {finding.claim.name: [finding.status.value, finding.words.partition("\n")[0]] for finding in report.findings}


def verdict(found: dict[str, list[str]]) -> str:
    """Return the value of the column "at fixed shape"."""
    failed = {claim for claim, (status, _) in found.items() if status == Status.FAILED.value}
    if any("ImportError" in words or "'pyg' object" in words for _, words in found.values()):
        return "library missing"
    if "runs" in found or any("no row for each graph" in words for _, words in found.values()):
        return "cannot be used"
    if "padding" in failed:
        return "needs masks"
    if failed & {"poisoned padding"}:
        return "needs finite padding"
    return "correct"


def as_page(rows: dict[str, dict[str, list[str]]]) -> str:
    """Return the table as Markdown, followed by the messages of failed claims."""
    claims = list(dict.fromkeys(claim for found in rows.values() for claim in found if claim != "runs"))
    claims = [
        claim for claim in claims if any(found.get(claim, [""])[0] in ("held", "failed") for found in rows.values())
    ]
    marks = {"held": "yes", "failed": "**no**", "not tried": ""}
    headings = ["layer or model", "at fixed shape", *claims]
    text = HEAD + "| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|\n"
    for name, found in rows.items():
        cells = [marks.get(found.get(claim, [""])[0], "") for claim in claims]
        text += f"| `{name}` | {verdict(found)} | " + " | ".join(cells) + " |\n"
    text += "\n## Messages of failed claims\n\n"
    for name, found in rows.items():
        wrong = [
            f"{claim}: {words[:300]}" for claim, (status, words) in found.items() if status in ("failed", "cannot")
        ]
        if wrong:
            text += f"- `{name}`: " + "; ".join(one.replace("|", "of").replace("<", "&lt;") for one in wrong) + "\n"
    return text


HEAD = """# Conformance of layers and models

This table shows which claims of `popgeo.testing` hold for each layer, pooling and model. Each is called as its
users call it, on four small graphs, in batches with more and less padding. [The guide](guides/conformance.md)
explains the claims. `python scripts/conformance_table.py` makes this page.

The column "at fixed shape" has one of these values:

- "correct": results of real rows do not depend on padding.
- "needs masks": results of real rows depend on padding. Use popgeo's layer of the same name, or a layer with masks.
- "needs finite padding": results of real rows depend on padding only if the padding is NaN.
- "cannot be used": the call fails at fixed shape, or the number of rows depends on data.
- "library missing": a library was not installed.

An empty cell means that the claim was not tried, such as the claim of a smooth cutoff for a layer without
positions.

The models of MACE, NequIP and SchNetPack are small and have random weights. Each has two rows. In the first
row, padding edges are loops of length 0. There, MACE and NequIP train on NaN, because a length of 0 has no
second derivative, and SchNetPack computes the number of structures from the last atom. In the second row, the
loaders of [`popgeo.potentials`](guides/potentials.md) make the padding, and every claim holds.

A "no" is not an error of a library that does not promise fixed shapes: a norm over all rows is right in a batch
of real rows. Two entries are errors of PyG. `APPNP` and `SGConv`, like all layers that call `gcn_norm` with
weights, keep only the last self-loop of a node that has several. The other self-loops are lost without a
warning, and the result depends on the order of the edges.

```python
import torch
from torch_geometric.nn.conv.gcn_conv import gcn_norm

# Two loops of node 0, and an edge.
edge_index = torch.tensor([[0, 0, 0], [0, 0, 1]])
print(gcn_norm(edge_index, torch.tensor([1.0, 3.0, 1.0]), 2))
print(gcn_norm(edge_index, torch.tensor([3.0, 1.0, 1.0]), 2))
```

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", nargs="+", default=[], choices=("popgeo", "pyg", "potentials"))
    parser.add_argument("--only", nargs="+", help="names to try; default: all")
    parser.add_argument("--slow", action="store_true", help="also try the claims of compilers")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--page", nargs="+", type=Path, help="files of results from which the page is made")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {}
    for group in given.group:
        for name, make in subjects(group):
            if not given.only or name in given.only:
                rows[name] = tried(make, given.slow, IN_SPACE if group == "potentials" else ())
                print(f"{name}: {verdict(rows[name])}", flush=True)
                if given.json:
                    given.json.write_text(json.dumps(rows, indent=1) + "\n")
    if given.page:
        for path in given.page:
            rows.update(json.loads(path.read_text()))
        PAGE.write_text(as_page(rows))


if __name__ == "__main__":
    main()
