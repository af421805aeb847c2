"""The benchmarks of other hardware run: counts without a GPU, and the GPU's own code on the processor."""

import runpy
import sys

import pytest
import torch

from tests.conftest import REPOSITORY


def printed_by(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.setattr(sys, "path", [str(REPOSITORY / "benchmarks"), *sys.path])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(REPOSITORY / "benchmarks" / script), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    return capsys.readouterr().out


def test_fixed_sizes_make_one_graph_and_ordinary_ones_more(monkeypatch, capsys):
    *_, counts = printed_by("recompilations.py", monkeypatch, capsys, "--quick").splitlines()
    name, fixed, automatic, static = counts.split()
    assert (name, fixed, static) == ("graphconv", "1", "3")  # one graph per size of three ordinary batches
    assert int(automatic) > 1


def test_the_gpus_benchmark_runs_on_the_processor_and_claims_nothing_there(monkeypatch, capsys):
    printed = printed_by("gpu.py", monkeypatch, capsys, "--device", "cpu", "--quick")
    assert "the processor: no figure of a GPU" in printed
    assert printed.count("end in the same bits") == 3
    assert printed.count("compile_step") == printed.count("and the step runs") == 3
    assert "SchNet with forces" in printed


def test_the_gpus_benchmark_prints_how_long_a_loop_waits(monkeypatch, capsys):
    printed = printed_by("waiting.py", monkeypatch, capsys, "--quick")
    shares = [float(line.split()[-4].rstrip("%")) for line in printed.splitlines() if "of the time" in line]
    assert len(shares) == 4
    assert all(0 < share < 100 for share in shares)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_the_benchmark_says_so_in_one_line(monkeypatch, capsys):
    assert printed_by("gpu.py", monkeypatch, capsys) == (
        "gpu.py: torch finds no CUDA device, so there is nothing to measure.\n"
    )


def test_the_limits_of_a_step_are_those_of_its_products_and_its_tensors():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        from gpu_limits import limits_of
    finally:
        sys.path.pop(0)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(32, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.weight).relu().sum()

    limits = limits_of(Loss(), [torch.ones(64, 32)])
    product, weights, result = 2 * 64 * 32 * 16, 4 * 32 * 16, 4 * 64 * 16
    assert 2 * product < limits.flops < 3 * product  # forward, and the gradient of the weight
    of_products = 2 * (4 * 64 * 32 + weights + result)
    # The sum reads the result, and its gradient is written once or read as one number.
    assert of_products <= limits.bytes_fused - 7 * weights <= of_products + 2 * result
    assert limits.bytes_alone >= limits.bytes_fused + 2 * result  # relu reads and writes
    assert limits.seconds(limits.bytes_fused) == limits.bytes_fused / 3.35e12


def test_the_gpus_benchmark_prints_the_limits_of_a_step(monkeypatch, capsys):
    printed = printed_by("gpu.py", monkeypatch, capsys, "--limits", "--quick")
    assert printed.count("GFLOP") == 3
