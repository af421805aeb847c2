"""The tensors of a batch are listed in the code and in the guide; both lists are the same, and true."""

import re
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, batch_contents

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "batch.md").read_text()
SIZES = FixedSizeOptions(num_nodes=8, num_edges=7, num_graphs=4)


def plain(text: str) -> str:
    """Return a text of the guide with the signs of code."""
    return text.replace("…", "...").replace("·", "*").strip()


def section(text: str, start: str, stop: str) -> str:
    return text.split(start)[1].split(stop)[0]


def rows(table: str) -> list[list[str]]:
    """Return the cells of each row of a table of the guide, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[plain(cell) for cell in line.strip("|").split("|")] for line in lines]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def in_code() -> dict[str, str]:
    """Return the shape of each tensor by the first table of the code."""
    table = section(batch_contents.__doc__, "tensor          shape", "\n\nSome")
    found = re.findall(r"^    (\S.*?)  +(\[.*?\])", table, flags=re.MULTILINE)
    return {name: shape for names, shape in found for name in words(names)}


def in_guide() -> dict[str, str]:
    """Return the shape of each tensor by the first table of the guide."""
    table = section(PAGE, "## Every tensor", "Some batches hold more")
    return {name: shape for names, shape, *_ in rows(table) for name in words(names)}


MORE_IN_CODE = section(batch_contents.__doc__, "Some batches hold more:", "Indices are")
MORE_IN_GUIDE = section(PAGE, "Some batches hold more.", "`index_dtype")


def test_both_tables_name_the_same_tensors_with_the_same_shapes():
    assert in_code() == in_guide()
    assert len(in_code()) == 11


def test_what_only_some_batches_hold_is_named_in_both():
    names = [set(re.findall(r"`([A-Za-z_]+)", text)) for text in (MORE_IN_CODE, MORE_IN_GUIDE)]
    assert names[0] == names[1] | {"rowptr"}


def test_what_only_some_batches_hold_has_the_same_shape_in_both():
    by_name = {name: row[2] for row in rows(MORE_IN_GUIDE) for name in words(row[0])}
    found = re.findall(r"^- ((?:`\w+`(?:, | and )?)+) (\[.*?\])", MORE_IN_CODE, flags=re.MULTILINE)
    shapes = {name: shape for names, shape in found for name in re.findall(r"`(\w+)`", names)}
    assert shapes == {name: by_name[name] for name in ("rowptr", "num_trimmed_nodes", "num_trimmed_edges")}
    others = re.findall(r" is (\[(?:`.*?`|[^]])*\])", MORE_IN_CODE)
    assert others
    assert set(others) <= set(by_name.values())


@pytest.mark.parametrize("table", [in_code, in_guide])
def test_a_batch_has_these_tensors_in_these_shapes_and_no_others(table):
    def graph(num_nodes: int, num_edges: int) -> Data:
        return Data(
            x=torch.ones(num_nodes, 3),
            pos=torch.ones(num_nodes, 2),
            z=torch.ones(num_nodes),
            edge_index=torch.zeros(2, num_edges, dtype=torch.long),
            edge_attr=torch.ones(num_edges, 4),
            y=torch.ones(1, 5),
        )

    batch = FixedSizeCollater(SIZES, add_masks_to_batch=True)([graph(2, 2), graph(3, 3)])
    sizes = {"N": SIZES.num_nodes, "E": SIZES.num_edges, "G": SIZES.num_graphs}
    tensors = {name: held for name, held in batch.to_dict().items() if isinstance(held, torch.Tensor)}
    assert tensors.keys() == table().keys()
    for name, shape in table().items():
        *known, last = shape.strip("[]").split(", ")
        known += [last] if last != "..." else []
        expected = [eval(size, sizes) for size in known]
        assert list(tensors[name].shape[: len(expected)]) == expected, name
        assert last == "..." or tensors[name].dim() == len(expected), name
