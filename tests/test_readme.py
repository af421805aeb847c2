"""What the README says is true: its code runs as it stands, its commands and its links exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_shows_code():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[0])
def test_the_code_of_the_readme_runs_word_for_word(block: str, tmp_path: Path):
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr


def test_the_commands_of_the_readme_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    commands = set(re.findall(r"\bmake ([a-z]+)\b", README))
    assert {"demo", "test"} <= commands <= targets


def test_the_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert [link for link in links if "://" not in link and not (REPOSITORY / link).exists()] == []
