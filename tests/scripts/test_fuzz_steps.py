"""Random programs have the same results as in eager code, and the tool finds programs with differences."""

import importlib
import sys
from pathlib import Path

import pytest

from popgeo.capture import drawn_numbers

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
draw_programs, fuzz_steps = (importlib.import_module(name) for name in ("draw_programs", "fuzz_steps"))
sys.path.remove(str(SCRIPTS))
Program = draw_programs.Program


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", [0, 100])
def test_programs_drawn_at_random_are_equal_or_refused(first):
    counts = fuzz_steps.Counts()
    assert list(fuzz_steps.failures(iter(range(first, first + 7)), 30.0, counts)) == []
    assert counts[fuzz_steps.EQUAL] >= 2


def test_a_seed_draws_the_same_program_each_time():
    assert draw_programs.draw(17) == draw_programs.draw(17) != draw_programs.draw(18)


CONJUGATE = Program(("v0 = x * self.w0", "v1 = z * self.w1", "v2 = v0.sin()", "v3 = v1 * v1.conj()"), ("v2", "v3"))
CHECKPOINT = Program(
    (
        "v0 = x * self.w0",
        "v1 = v0.tanh()",
        "v2 = checkpoint(lambda t: F.dropout(t * self.w0, 0.5).exp(), v1, use_reentrant=False)",
    ),
    ("v1", "v2"),
    optimizer="torch.optim.SGD(model.parameters(), lr=0.1)",
)


def test_without_marks_a_program_fails_and_becomes_as_small_as_it_can(monkeypatch):
    assert fuzz_steps.verdict(CONJUGATE)[0] == fuzz_steps.EQUAL
    monkeypatch.setattr("popgeo.capture.marks.marks_of", lambda tensor: (False, False))
    assert fuzz_steps.verdict(CONJUGATE)[0] == fuzz_steps.FAILED
    assert "v2" not in fuzz_steps.shrink(CONJUGATE).source


def test_where_no_draw_is_repeated_a_program_with_a_checkpoint_fails(monkeypatch):
    assert fuzz_steps.verdict(CHECKPOINT)[0] == fuzz_steps.EQUAL
    monkeypatch.setattr(drawn_numbers.DrawnNumbers, "record_state", lambda self: None)
    assert fuzz_steps.verdict(CHECKPOINT)[0] == fuzz_steps.FAILED


def test_what_is_printed_runs_as_a_script_and_says_nothing_where_nothing_differs(capsys):
    exec(compile(CONJUGATE.source, "<printed>", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == ""
