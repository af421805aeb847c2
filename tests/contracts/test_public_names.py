"""A guide, an example, a notebook or a benchmark uses each public name; the reference does not count."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.contracts.test_imports import imports, parsed

FACES = ("data", "loader", "nn", "ops", "ipu", "packing", "plots", "sampling", "testing", "datasets", "convert")
MODULES = ["popgeo", *(f"popgeo.{face}" for face in FACES)]
FOLDERS = ("docs", "examples", "notebooks", "benchmarks")


def code_in_page(text: str) -> str:
    """Return the code of a Markdown page: fenced blocks, indented lines, and text in backticks."""
    fenced = re.findall(r"^```\w+\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*fenced, *re.findall(r"`([^`]+)`", rest), *re.findall(r"^    .*$", rest, flags=re.MULTILINE)])


def code_in_script(text: str) -> str:
    """Return the names in a script's code, without its texts."""
    named = (getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(parsed(text)))
    imported = (alias.name for node in imports(text) for alias in node.names)
    return " ".join([*(name for name in named if isinstance(name, str)), *imported])


def code_in_notebook(text: str) -> str:
    """Return the code cells of a notebook, and the code in its Markdown cells."""
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return "\n".join(source if kind == "code" else code_in_page(source) for kind, source in cells)


KINDS = {".md": code_in_page, ".py": code_in_script, ".ipynb": code_in_notebook}


def used_in(paths: Iterable[Path]) -> set[str]:
    """Return every word of code in the files."""
    return {word for path in paths for word in re.findall(r"\w+", KINDS[path.suffix](path.read_text()))}


def public_names(source: str) -> list[str]:
    """Return the names that a face re-exports from popgeo's files."""
    handed = (node for node in imports(source) if isinstance(node, ast.ImportFrom))
    names = {alias.asname for node in handed if "popgeo" in node.module for alias in node.names if alias.asname}
    return sorted(name for name in names if not name.startswith("_"))


def pages() -> Iterator[Path]:
    """Yield the documents, without the reference and without pages made from notebooks."""
    made = (REPOSITORY / "docs" / "api", REPOSITORY / "docs" / "notebooks", REPOSITORY / "docs" / "conf.py")
    files = (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.suffix in KINDS)
    yield REPOSITORY / "README.md"
    yield from (path for path in files if not any(path.is_relative_to(other) for other in made))


def test_every_public_name_is_used_where_a_reader_meets_it():
    used = used_in(pages())
    faces = {module: public_names(Path(find_spec(module).origin).read_text()) for module in MODULES}
    unused = {module: sorted({*names} - used) for module, names in faces.items()}
    assert not any(unused.values()), f"show a use in a guide, or remove from the face: {unused}"


def test_the_check_sees_code_and_no_words_beside_it(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("A Cut, a `Stage`.\n\n    python -m popgeo\n\n```python\nfill(1)  # shard\n```\n")
    assert used_in([page]) == {"Stage", "python", "m", "popgeo", "fill", "1", "shard"}
    script = tmp_path / "script.py"
    script.write_text('"""A Cut."""\nfrom popgeo import ops\nops.fill(window)  # Stage\n')
    assert used_in([script]) == {"ops", "fill", "window"}
    notebook = tmp_path / "notebook.ipynb"
    cells = [{"cell_type": "markdown", "source": ["A Cut, ", "`Stage`"]}, {"cell_type": "code", "source": ["fill()"]}]
    notebook.write_text(json.dumps({"cells": cells}))
    assert used_in([notebook]) == {"Stage", "fill"}


def test_the_check_knows_what_a_face_hands_on():
    face = "from typing import Any\nfrom popgeo.data.pad import Pad as Pad\nfrom popgeo.data import trim as _trim\n"
    assert public_names(face) == ["Pad"]
