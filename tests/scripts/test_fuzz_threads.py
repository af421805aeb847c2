"""Cases of threads and interrupts end correctly, and the tool finds wrong cases."""

import importlib
import re
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
fuzz_threads = importlib.import_module("fuzz_threads")
sys.path.remove(str(SCRIPTS))


@pytest.mark.filterwarnings("ignore")
def test_threads_have_their_own_results_and_interrupts_leave_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz_threads.py", "--cases", str(len(fuzz_threads.KINDS)), "--seed", "suite"])
    ended = fuzz_threads.main()
    said = capsys.readouterr().out
    assert ended == 0, said
    assert re.search(f"^{len(fuzz_threads.KINDS)} cases$", said, re.MULTILINE)


def end_wrong(draw, folder):
    fuzz_threads.in_threads(lambda index: index == 0, 2)


def leave_a_thread(draw, folder):
    threading.Thread(target=time.sleep, args=(0.4,)).start()


def draw_numbers(draw, folder):
    torch.rand(1)


@pytest.mark.parametrize(
    ("kind", "outcome"), [(end_wrong, "wrong"), (leave_a_thread, "thread left"), (draw_numbers, "generator")]
)
def test_what_goes_wrong_is_counted_and_shown(monkeypatch, capsys, kind, outcome):
    monkeypatch.setattr(fuzz_threads, "PATIENCE", 0.05)
    monkeypatch.setattr(fuzz_threads, "KINDS", {kind.__name__: kind})
    monkeypatch.setattr(sys, "argv", ["fuzz_threads.py", "--cases", "1"])
    assert fuzz_threads.main() == 1
    assert capsys.readouterr().out.startswith(f"{outcome}: {kind.__name__}, --seed 0 --only 0")
    time.sleep(0.4)
