"""The profile of a training step, and the ratio of its time to the time of its arithmetic."""

import time
from collections.abc import Callable

import torch
from timing import measure
from torch.profiler import profile

PARTS = {
    "messages and sums": ("cfconv", "cfconv_backward", "gather", "index_select", "index_add", "index_add_", "sum"),
    "activations": ("shifted_softplus", "shifted_softplus_backward"),
}


def print_shares(step: Callable[[], object]) -> None:
    """Print the share of each part of a step; the last part is the time that torch's profiler does not see."""
    steps = 5
    step()
    with profile(acc_events=True) as profiler:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        total = time.perf_counter() - start
    spent = dict.fromkeys((*PARTS, "other operations"), 0.0)
    for event in profiler.key_averages():
        name = event.key.rpartition("::")[2]
        part = next((part for part, names in PARTS.items() if name in names), "other operations")
        spent[part] += 1e-6 * event.self_cpu_time_total
    spent["interactions, products, chains, engine"] = max(0.0, total - sum(spent.values()))
    for part, seconds in spent.items():
        print(f"  {part:38} {100 * seconds / sum(spent.values()):5.1f} %")


def print_roofline(flops: float, seconds: float) -> None:
    """Print the time of a step's products at the speed of a large matmul."""
    a = torch.randn(1024, 1024)
    peak = 2 * 1024**3 / measure({"matmul": lambda: a @ a}, rounds=3)["matmul"]
    print(
        f"  roofline: {flops / 1e9:.2f} GFLOP of products at {peak / 1e9:.0f} GFLOP/s (a matmul of 1024) take "
        f"{1e3 * flops / peak:.1f} ms; the step takes {seconds * peak / flops:.1f} times as long (goal 2)"
    )
