"""Export models of popgeo and PyG in each format, compare the results of the files with the models, and write a page.

    python scripts/export_table.py --page                          # torch and ONNX, minutes
    python scripts/export_table.py --formats aotinductor --only GIN SchNet   # a minute each

A row is a model as a user calls it, on twelve small graphs in batches of one shape. With `forces`, the file also
computes the negative gradient by the positions. "yes" means that the file's results for all graphs, with padding of
several sizes, equal the results of eager PyTorch within 1e-5 of the largest. Any other text is the error.
"""

import argparse
import json
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from conformance_table import NAMES_OF, OWN, graphs, letters
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

import popgeo
from popgeo.data import FixedSizeOptions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "export_table.md"
FORMATS = ("torch", "onnx", "aotinductor")
SIZES = FixedSizeOptions(num_nodes=16, num_edges=44, num_graphs=4)
FORCES, OWN_PREFIX = "forces: ", "popgeo.nn: "
MODELS = """
GCN(8, 8, 2, 4) | x, ei
GraphSAGE(8, 8, 2, 4) | x, ei
GIN(8, 8, 2, 4) | x, ei
GAT(8, 8, 2, 4, heads=2) | x, ei
GAT(8, 8, 2, 4, v2=True, edge_dim=3) | x, ei, None, ea
PNA(8, 8, 2, 4, aggregators=['mean', 'max', 'std'], scalers=['amplification'], deg=torch.arange(1, 6)) | x, ei
EdgeCNN(8, 8, 2, 4) | x, ei
TransformerConv(8, 4, heads=2, edge_dim=3) | x, ei, ea
NNConv(8, 4, nn.Linear(3, 32)) | x, ei, ea
RGCNConv(8, 4, 3) | x, ei, et
GPSConv(8, GCNConv(8, 8), heads=2) | x, ei, b
Set2Set(8, 2) | x, b, dim_size=G
GraphMultisetTransformer(8, 2, heads=2) | x, b, dim_size=G, max_num_elements=8
AttentiveFP(8, 4, 4, 3, 2, 2) | x, ei, ea, b
NeuralFingerprint(8, 4, 4, 2) | x, ei, b, batch_size=G
DeepGCNLayer(GENConv(8, 8), nn.LayerNorm(8), nn.ReLU(), dropout=0.0) | x, ei
GraphUNet(8, 8, 4, 2) | x, ei, b
SGFormer(8, 4, 4, trans_dropout=0.0, gnn_dropout=0.0) | x, ei, b
Polynormer(8, 4, 4, 2, 1, 0.0, 0.0, 0.0) | x, ei, b
JumpingKnowledge('lstm', 8, 2) | [x, x.cos()]
MetaLayer() | x, ei, ea
SchNet(8, 8, 2, 4, 2.0) | z, pos, b
to_fixed_size(SchNet(8, 8, 2, 4, 2.0), 4) | z, pos, b
forces: to_fixed_size(SchNet(8, 8, 2, 4, 2.0), 4) | z, pos, b
DimeNet(8, 4, 1, 2, 2, 2) | z, pos, b
DimeNetPlusPlus(8, 4, 1, 2, 2, 4, 2, 2) | z, pos, b
ViSNet(hidden_channels=8, num_layers=1, num_heads=2, num_rbf=4) | z, pos, b
"""
OWN_FORCES = """
forces: SchNet(8, 8, 2, 4, cutoff=4.0, max_num_neighbors=7) | z, pos, b, num_graphs=G, nodes_mask=nm
forces: SchNet(8, 8, 2, 4, cutoff=4.0) | z, pos, b, ei, num_graphs=G, nodes_mask=nm, edges_mask=em
forces: PaiNN(8, 2, 6, 4.0) | z, pos, b, num_graphs=G, nodes_mask=nm
"""


class Called(nn.Module):
    """A module that runs the call of one line on a batch, and returns its tensors and, if requested, forces."""

    def __init__(self, made: str, called: str, group: str) -> None:
        super().__init__()
        self.group, self.called, self.forces = group, called, made.startswith(FORCES)
        self.layer = eval(made.removeprefix(FORCES), NAMES_OF[group])

    def forward(self, data: Any) -> dict[str, Tensor]:
        given = {**NAMES_OF[self.group], **letters(data), "layer": self.layer}
        with torch.enable_grad():
            if self.forces:
                given["pos"] = given["pos"].detach().requires_grad_()
            made = eval(f"layer({self.called})", given)
            found = {f"out_{i}": one for i, one in enumerate(tree_leaves(made)) if isinstance(one, Tensor)}
            if self.forces:
                found["forces"] = -torch.autograd.grad(found["out_0"].sum(), given["pos"])[0]
        return {name: one.detach() for name, one in found.items()}


def many_graphs() -> list[Data]:
    """Return the four graphs of the table of claims, and eight graphs with other numbers and edges."""
    made, draw = graphs(), torch.Generator().manual_seed(1)
    for graph in [graph.clone() for graph in made * 2]:
        graph.x, graph.pos = (torch.randn(one.shape, generator=draw) for one in (graph.x, graph.pos))
        graph.edge_index = torch.randint(graph.num_nodes, graph.edge_index.shape, generator=draw)
        made.append(graph)
    return made


def tried(line: str, group: str, format: str) -> str:
    """Return `yes`, or the error of a line."""
    made, _, called = (part.strip() for part in line.partition("|"))
    some = many_graphs()
    for graph in some if made.startswith(FORCES) else ():  # atoms have no edges to themselves
        graph.edge_index[1] += (graph.edge_index[0] == graph.edge_index[1]).long()
        graph.edge_index[1] %= graph.num_nodes
    torch.manual_seed(0)
    try:
        model = Called(made, called, group).eval()
        wanted = popgeo.Predictor(model, SIZES, "none")(some)
    except Exception as error:
        return f"no reference: {first_line(error)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = popgeo.export(model, SIZES, Path(folder) / "file.pt2", format, graphs=some[:4])
            found = popgeo.load(path)(some)
        except Exception as error:
            return first_line(error)
    for name, tensor in wanted.items():
        scale = max(1.0, float(tensor.abs().max()))
        apart = float((found[name] - tensor).abs().max()) / scale
        if not apart <= 1e-5:
            return f"{name} differs by {apart:.1e}"
    return "yes"


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without the location in this file."""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text.partition('): ')[2] or text}"[:240]


def as_page(rows: dict[str, dict[str, str]]) -> str:
    """Return the table as Markdown, followed by the errors."""
    formats = [one for one in FORMATS if any(one in found for found in rows.values())]
    text = f"{HEAD}| model | {' | '.join(formats)} |\n" + "|---" * (len(formats) + 1) + "|\n"
    for line, found in rows.items():
        cells = ["yes" if found.get(one) == "yes" else "no" if one in found else "" for one in formats]
        text += f"| {call_of(line)} | {' | '.join(cells)} |\n"
    text += "\n## Errors of the other models\n\n"
    for line, found in rows.items():
        why = dict.fromkeys(words for words in found.values() if words != "yes")
        if why:
            text += f"- {call_of(line)}: {'; '.join(why).replace('<', '&lt;')}\n"
    return text


def call_of(line: str) -> str:
    """Return a row's name, such as `popgeo.nn: forces: PaiNN(8) | z`, as a call in Markdown."""
    is_own, with_forces = line.startswith(OWN_PREFIX), FORCES in line
    made, _, called = (part.strip() for part in line.removeprefix(OWN_PREFIX).removeprefix(FORCES).partition("|"))
    return "forces of " * with_forces + f"`{'popgeo.nn.' * is_own}{made}({called})`"


HEAD = """# Export formats of models

`popgeo.export` writes each model to a file, and `popgeo.load` reads it. The input is twelve small graphs, packed and
padded. "yes" means that all results of the file agree with eager PyTorch within 1e-5. An empty cell was not tried.
Names with the prefix `popgeo.nn` are popgeo's, the others are from `torch_geometric.nn`. In the calls, letters
represent the tensors of a batch: `x`, `z` and `pos` are node features, atomic numbers and positions; `ei`, `ea` and
`et` are `edge_index`, `edge_attr` and the type of each edge; `b` is `batch`, `nm` and `em` are the masks of nodes and
edges, and `G` is the number of graphs. A file of a row with "forces of" also computes forces.
`python scripts/export_table.py --page` makes this page.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=["torch", "onnx"], choices=FORMATS)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of the lines to try; default: all")
    parser.add_argument("--json", type=Path, help="file for the results; a later run continues from it")
    parser.add_argument("--page", action="store_true", help="write the page")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows: dict[str, dict[str, str]] = {}
    if given.json and given.json.exists():
        rows = json.loads(given.json.read_text())
    lines = [("popgeo", one) for one in (OWN + OWN_FORCES).split("\n")] + [("pyg", one) for one in MODELS.split("\n")]
    for group, line in lines:
        if not line or not line.removeprefix(FORCES).startswith(tuple(given.only)):
            continue
        name = OWN_PREFIX + line if group == "popgeo" else line
        for format in given.formats:
            if format not in rows.get(name, {}):
                rows.setdefault(name, {})[format] = tried(line, group, format)
                print(f"{name} as {format}: {rows[name][format]}", flush=True)
                if given.json:
                    given.json.write_text(json.dumps(rows, indent=1) + "\n")
    if given.page:
        PAGE.write_text(as_page(rows))


if __name__ == "__main__":
    main()
