"""The exit status of the command: 1 only if a claim fails, 0 only if all requested claims were tried and hold."""

import pytest

from popgeo.testing import __main__ as command

HEAD = "import sys, torch\nfrom tests.testing.planted.right_models import GRAPHS, Net\n"
BROKEN = {
    "exit in the module": "sys.exit()\ndef make(): return Net(), GRAPHS",
    "exit in the factory": "def make(): sys.exit(0)",
    "exit in forward": "def make():\n    def run(batch): sys.exit(0)\n    return run, GRAPHS",
    "exit in a later call": """
def make():
    calls = []
    def run(batch):
        calls.append(1)
        if len(calls) > 3: sys.exit(0)
        return batch.x * 1
    return run, GRAPHS
""",
    "no memory in a later call": """
def make():
    calls = []
    def run(batch):
        calls.append(1)
        if len(calls) > 3: torch.empty(2**60)
        return batch.x * 1
    return run, GRAPHS
""",
    "syntax": "def make(:",
    "missing module": "import no_such_module_at_all\ndef make(): return Net(), GRAPHS",
    "error in the module": "1 / 0",
    "error in the factory": "def make(): return [][1]",
    "no memory": "def make(): raise MemoryError('all of it')",
    "no memory in forward": "def make():\n    def run(batch): return torch.empty(2**60)\n    return run, GRAPHS",
    "nothing": "def make(): pass",
    "recursion": "def make(): return make()",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_tried_ends_with_2(name, tmp_path, monkeypatch, capsys):
    module = f"broken_{abs(hash(name))}"
    (tmp_path / f"{module}.py").write_text(HEAD + BROKEN[name])
    monkeypatch.syspath_prepend(tmp_path)
    assert command.main([f"{module}:make"]) == 2
    assert "popgeo.testing: " in capsys.readouterr().err


@pytest.mark.parametrize(("body", "status"), [("batch.x * 1", 0), ("batch.x + batch.x.shape[0]", 1)])
def test_a_model_that_runs_ends_with_what_was_found(body, status, tmp_path, monkeypatch):
    (tmp_path / f"running_{status}.py").write_text(HEAD + f"def make():\n    return (lambda batch: {body}), GRAPHS")
    monkeypatch.syspath_prepend(tmp_path)
    assert command.main([f"running_{status}:make", "--claims", "padding"]) == status


def test_a_report_that_cannot_be_written_ends_with_2(tmp_path, monkeypatch):
    (tmp_path / "running.py").write_text(HEAD + "def make():\n    return (lambda batch: batch.x * 1), GRAPHS")
    (tmp_path / "file").touch()
    monkeypatch.syspath_prepend(tmp_path)
    words = ["running:make", "--claims", "padding", "--json", str(tmp_path / "file" / "found.json")]
    assert command.main(words) == 2
