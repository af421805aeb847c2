"""Run notebooks from top to bottom and write their outputs back, without parts that differ from run to run.

    python scripts/run_notebooks.py                             # all notebooks in notebooks/
    python scripts/run_notebooks.py notebooks/02_packing.ipynb  # only this notebook
    python scripts/run_notebooks.py --stored                    # runs nothing; makes stored text fit the page

The script needs `pip install '.[notebooks]'` in a clone.
"""

import argparse
import base64
import io
import os
import re
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
TIMEOUT = 600  # seconds for one cell
# tqdm's clock, as in "[00:05<00:00, 5.61it/s, loss 0.3]"; text added by a script is kept.
BAR = re.compile(
    r"^.*(\d+%\|.*\| \d+/\d+|\d+ \w+) *\[[^\]]*\]$|^.*\d+%\|[^|]*\| \d+/\d+$|^popgeo: compiling .*$"
)  # tqdm's bars, with and without a known total, and the line of a slow compilation
WIDEST = 100  # columns of stored text: the width on a laptop next to the cell numbers
CLOCK = re.compile(r"\[\d\d:\d\d(?::\d\d)?<[^\],]*,[^\],]*(?:, )?([^\]]*)\]")


def execute(path: Path, folder: Path, settings: Mapping[str, object] | None = None) -> NotebookNode:
    """Return the notebook with the outputs of a new run.

    Args:
        path: File of the notebook.
        folder: Working folder of the kernel; popgeo is imported from this repository.
        settings: New values for names that a cell sets at the start of a line, such as `{"EPOCHS": 1}`.

    Raises:
        CellExecutionError: a cell raised an error; the message has its traceback.
        ValueError: no cell sets a name of `settings`.
    """
    notebook = nbformat.read(path, as_version=4)
    for name, value in (settings or {}).items():
        _set(notebook, name, value)
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    client = NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute(env=environment)
    return notebook


def _set(notebook: NotebookNode, name: str, value: object) -> None:
    found = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source, count = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", cell.source, flags=re.MULTILINE)
            found += count
    if found != 1:
        raise ValueError(f"{name} is set {found} times in the notebook; set it exactly once.")


def clean(notebook: NotebookNode) -> NotebookNode:
    """Remove time stamps and progress bars from the notebook, fold long lines, and shrink pictures."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = readable(joined(cell.outputs))
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", ()):
                output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join consecutive pieces of text of the same stream."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def readable(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return outputs for a page: without finished progress bars, and with folded lines.

    Warnings and other texts on the error stream are kept.
    """
    kept = []
    for output in outputs:
        if output.output_type == "stream":
            output.text = folded(without_clock(output.text))
            if output.name == "stderr":
                output.text = "".join(line for line in output.text.splitlines(True) if not BAR.match(line.rstrip()))
                if not output.text.strip():
                    continue
        elif "text/plain" in output.get("data", ()):
            output.data["text/plain"] = folded(output.data["text/plain"])
        kept.append(output)
    return kept


def folded(text: str) -> str:
    """Fold lines to at most `WIDEST` columns, at blanks but never before a percent sign.

    Example:
        >>> print(folded("Data(" + ", ".join(f"name_{i}=[1]" for i in range(9)) + ")"))
        Data(name_0=[1], name_1=[1], name_2=[1], name_3=[1], name_4=[1], name_5=[1], name_6=[1],
            name_7=[1], name_8=[1])
    """
    wrap = textwrap.TextWrapper(WIDEST, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    lines = (wrap.wrap(line.replace(" %", "\xa0%")) if len(line) > WIDEST else [line] for line in text.split("\n"))
    return "\n".join("\n".join(folds).replace("\xa0%", " %") for folds in lines)


def smaller(picture: str) -> str:
    """Reduce a picture (PNG in Base64) to 256 colours, which is enough for figures and halves the size."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    out = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(out, format="PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def without_clock(text: str) -> str:
    r"""Return the final text of progress bars on a terminal, without their clocks.

    Example:
        >>> without_clock("50%| 1/2 [00:01<00:01, 1.0s/it]\r100%| 2/2 [00:02<00:00, 1.0s/it, loss 0.3]\n")
        '100%| 2/2 [loss 0.3]\n'
    """
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(CLOCK.sub(lambda match: f"[{match[1]}]" if match[1] else "", line).rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="notebooks to run (default: all in notebooks/ and its folders)"
    )
    parser.add_argument("--stored", action="store_true", help="run nothing; only fold stored text")
    given = parser.parse_args()
    for path in given.notebooks or sorted((REPOSITORY / "notebooks").rglob("[!.]*.ipynb")):
        start = time.monotonic()
        if given.stored:
            notebook = nbformat.read(path, as_version=4)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = readable(cell.outputs)
        else:
            notebook = clean(execute(path.resolve(), path.resolve().parent))
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - start:.0f} s, {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
