"""Runs the cells of a notebook in this process, without the syntax of Jupyter."""

import ast
import json
import linecache
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Cell magics before Python code. After any other `%%` the cell is not Python.
_AROUND_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")
# A magic, a shell command, a help request, or `files = !ls`.
_NO_PYTHON = re.compile(r"[%!?]|[\w.]+\?{1,2}$|\w+\s*=\s*[%!]")


def run_notebook(path: Path) -> None:
    """Run a notebook's code cells in its folder, and print the value of each cell's last expression.

    Magics such as `%pip install` and commands such as `!ls` are skipped, with a line on standard error.

    Raises:
        ValueError: The file is not a notebook.
    """
    cells = list(_code_cells(path))
    module = ModuleType("__main__")
    # Without `__file__`, as in Jupyter: otherwise a spawned process would run the notebook.
    vars(module).update(display=_display)
    before, folder = sys.modules["__main__"], Path.cwd()
    sys.modules["__main__"] = module  # pickle looks up a cell's classes there
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures open no windows
    os.chdir(path.resolve().parent)
    try:
        for number, source in enumerate(cells, start=1):
            lines, skipped = python_lines(source)
            for line in skipped:
                print(f"{path.name}: cell {number}: skipped {line}", file=sys.stderr)
            _run_cell("\n".join(lines), f"{path}[cell {number}]", vars(module))
    finally:
        os.chdir(folder)
        sys.modules["__main__"] = before


def python_lines(source: str) -> tuple[list[str], list[str]]:
    r"""Return a cell's lines with magics and commands commented out, and the list of magics and commands.

    Example:
        >>> python_lines("%pip install torch\nx = 1\n!ls")
        (['pass  # %pip install torch', 'x = 1', 'pass  # !ls'], ['%pip install torch', '!ls'])
    """
    lines = source.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_AROUND_PYTHON):
        return [], [first]
    kept: list[str] = []
    skipped: list[str] = []
    continues = False
    for line in lines:
        text = line.strip()
        if continues or (_NO_PYTHON.match(text) and not _is_inside(kept)):
            skipped.append(text)
            line = f"# {text}" if continues else line.replace(text, f"pass  # {text}", 1)
            continues = text.endswith("\\")
        kept.append(line)
    return kept, skipped


def _is_inside(kept: list[str]) -> bool:
    """Check whether the lines end inside a bracket, a string or a continued line."""
    if kept and kept[-1].endswith("\\"):
        return not kept[-1].lstrip().startswith(("#", "pass  #"))
    try:
        ast.parse("\n".join(kept))
    except SyntaxError as error:
        return any(word in str(error.msg) for word in ("was never closed", "unterminated"))
    return False


def _code_cells(path: Path) -> Iterator[str]:
    try:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source = cell["source"]
                yield source if isinstance(source, str) else "".join(source)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a notebook of version 4: {error!r}.") from error


def _run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    """Run a cell, and print the value of its last statement if it is an expression."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    tree = ast.parse(source, filename=name)
    is_shown = tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";")
    last = tree.body.pop() if is_shown else None
    exec(compile(tree, name, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        _display(*[] if value is None else [value])


def _display(*values: Any, **_: Any) -> None:
    """Print values, as a replacement of Jupyter's `display`."""
    for value in values:
        print(value if isinstance(value, str) else repr(value))
