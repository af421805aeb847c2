"""Run the scripts of a report's page without a browser."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def run_page(path: Path, at: tuple[float, float] | None = None) -> Any:
    """Return a page's drawing on canvases (`drawn`), its text for a point (`told`), and its `labels`.

    Labels are texts of boxes with their own width, with this width. Each drawn entry is
    `[fillRect or fillText, colour, ...arguments]`, on a page of 1150 pixels.
    """
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    where = [] if at is None else [str(part) for part in at]
    command = [node, str(Path(__file__).with_name("run_page.js")), str(path), *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
