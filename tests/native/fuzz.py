"""Fuzzes the compiled kernels under AddressSanitizer: random shapes, indices, plans and threads, valid and not.

Builds the library with -fsanitize=address,undefined into a temporary folder and runs this file again with it, through
the same Python as users call. Whatever it is given, a call must return what plain torch returns, or raise ValueError; a
read or write out of bounds stops the run with the sanitizer's report.

    python tests/native/fuzz.py --seconds 60
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "popgeo" / "native" / "csrc"
FLAGS = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-fopenmp", "-ffp-contract=off", "-fno-omit-frame-pointer"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(folder: Path) -> Path:
    """Build the library with sanitizers and one instruction set for all kernels."""
    from popgeo.native import library

    path = folder / "_popgeo.so"
    sources = [str(path) for path in sorted(CSRC.glob("*.cpp"))]
    checksum = f"-DPOPGEO_SOURCES={library.sources_checksum()}u"
    avx = ["-mavx2", "-mf16c", "-mfma"] if "avx2" in Path("/proc/cpuinfo").read_text() else []
    subprocess.run(
        [os.environ.get("CXX", "g++"), *FLAGS, checksum, *avx, *SANITIZE, *sources, "-o", str(path)], check=True
    )
    return path


def preloaded(path: Path) -> dict[str, str]:
    """Return the environment of a Python that loads the sanitizers first and uses this library."""
    runtimes = [
        subprocess.run([os.environ.get("CXX", "g++"), f"-print-file-name={name}"], capture_output=True, text=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {
        "LD_PRELOAD": " ".join(runtime.stdout.strip() for runtime in runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(ROOT),
        "POPGEO_FUZZED_LIBRARY": str(path),
    }


def rerun(path: Path, seconds: float, seed: int) -> int:
    """Run `fuzz` in a Python that loads the sanitizers first."""
    command = [sys.executable, __file__, "--seconds", str(seconds), "--seed", str(seed)]
    return subprocess.run(command, env=preloaded(path)).returncode


def placed(chance: random.Random, tensor: Any) -> Any:
    """Return the tensor, or sometimes its numbers at an address that their type does not allow."""
    import torch

    if not tensor.numel() or tensor.stride() != torch.empty(tensor.shape).stride() or chance.random() < 0.9:
        return tensor
    offset = chance.randrange(1, tensor.element_size()) if tensor.element_size() > 1 else 0
    memory = bytearray(offset) + bytes(tensor.view(-1).view(torch.uint8).numpy())
    made = torch.frombuffer(memory, dtype=tensor.dtype, offset=offset).view(tensor.shape)
    assert not offset or made.data_ptr() % tensor.element_size()
    return made


def sample(chance: random.Random) -> tuple[Any, Any]:
    """Return all numbers of a random sample of a random graph, with and without the library."""
    import torch

    from popgeo.native import library
    from popgeo.sampling import CompressedGraph, sample_neighbors

    nodes, edges = chance.choice([1, 7, 40, 900, 70_000]), chance.choice([0, 1, 30, 3000])
    edge_index = torch.randint(chance.choice([nodes, max(1, nodes // 9)]), (2, edges))
    if edges and chance.random() < 0.1:
        edge_index[chance.randrange(2), chance.randrange(edges)] = chance.choice([-1, nodes, 2**31, 2**62, -(2**63)])
    columns: dict[str, torch.Tensor] = {}
    kind = chance.choice(["", "edge_weight", "edge_time", "node_time"])
    if kind:
        size = nodes if kind == "node_time" else edges
        column = torch.rand(size).sub(0.1).relu() if kind == "edge_weight" else torch.randint(9, (size,))
        columns[kind] = placed(chance, column)
    edge_index, seeds = placed(chance, edge_index), placed(chance, torch.randint(nodes, (chance.choice([0, 1, 50]),)))
    options = {
        "replace": chance.random() < 0.3,
        "disjoint": chance.random() < 0.5,
        "subgraph_type": chance.choice(["directional", "bidirectional", "induced"]),
        "seed_time": placed(chance, torch.randint(9, (len(seeds),))) if "time" in kind else None,
        "temporal_strategy": chance.choice(["uniform", "last"]) if "time" in kind else "uniform",
        "seed": chance.getrandbits(64),
    }
    hops = [chance.choice([-1, 0, 1, 5, 64, 65, 300]) for _ in range(chance.randrange(3))]

    def numbers() -> torch.Tensor:
        graph = CompressedGraph.from_edge_index(
            edge_index if wide else edge_index.int(),
            nodes,
            direction=direction,
            dtype=dtype,
            **columns,
        )
        found = sample_neighbors(graph, seeds, hops, **options)
        batch = found.node if found.batch is None else found.batch
        return torch.cat([found.node, batch, found.row, found.col, found.edge, torch.tensor(found.num_sampled_nodes)])

    wide = chance.random() < 0.8 or not bool((edge_index.abs() < 2**31).all())
    direction, dtype = chance.choice(["incoming", "outgoing"]), chance.choice([None, torch.int32, torch.int64])
    got = numbers()
    with library.without_native():
        return got, numbers()


def fuzz_chain(chance: random.Random) -> None:
    """Run a random chain of element-wise operations on operands of any memory order, and compare with eager."""
    import torch

    from popgeo.capture.capture import bind, capture
    from popgeo.engine.graph_runner import GraphRunner

    rows, columns = chance.choice([1, 2, 3, 9, 40, 300]), chance.choice([1, 2, 7, 16, 33, 100, 1023, 1025, 3000])

    def operand() -> torch.Tensor:
        whole = torch.randn(chance.choice([1, rows]), chance.choice([1, columns]))
        how = [lambda: placed(chance, whole), lambda: whole.t().contiguous().t(), lambda: whole.repeat(1, 2)[:, ::2]]
        return chance.choice(how)()

    steps = [(chance.randrange(9), chance.randrange(99), chance.randrange(99)) for _ in range(chance.randrange(2, 12))]

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = [x.clone() for x in inputs]  # what a caller passed is not written to
        for kind, first, second in steps:
            x, y = made[first % len(made)], made[second % len(made)]
            if kind < 4:
                made.append([torch.tanh, torch.exp, torch.cos, torch.neg][kind](x.clamp(-2, 2)))
            elif kind < 7:
                made.append(
                    [torch.add, torch.mul, lambda x, y: torch.where(x > y, x, 2 * y)][kind - 4](x, y).clamp(-9, 9)
                )
            elif kind == 7 and x.shape == torch.broadcast_shapes(x.shape, y.shape):
                x.mul_(0.5).add_(y)
            else:
                made += [(x * 0.5).sum(0, keepdim=True) / rows, (x * 0.5).sum(1, keepdim=True) / columns]
        return tuple(x.clone() for x in made)

    inputs = [operand() for _ in range(4)]
    graph = capture(function, bind(function, *(x.clone() for x in inputs))).graph
    made, expected = GraphRunner(graph, {}).run(inputs), function(*(x.clone() for x in inputs))
    for result, want in zip(made, expected, strict=True):
        torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-4)


def fuzz(path: Path, seconds: float, seed: int) -> None:
    import torch

    from popgeo import ops
    from popgeo.native import library
    from popgeo.ops import EdgePlan, ScatterPlan, gather_scatter

    library._PATH = path
    gather_scatter.is_torch_fast = lambda *_, **__: False  # every sum is to reach the kernel
    assert library.is_available(), library.reason()
    chance = random.Random(seed)
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
    refused = computed = 0

    def index(size: int, limit: int) -> torch.Tensor:
        if limit == 0:
            return torch.zeros(0, dtype=torch.long)
        values = torch.randint(limit, (size,))
        if chance.random() < 0.5:
            values = values.sort().values
        if size and chance.random() < 0.15:
            values[chance.randrange(size)] = chance.choice([-1, limit, 2**31, 2**32, 2**62, -(2**63)])
        if chance.random() < 0.2:
            values = values.repeat_interleave(2)[::2]
        return values.int() if chance.random() < 0.2 and bool((values.abs() < 2**31).all()) else values

    def corrupt(plan: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        for tensor in plan:
            if len(tensor) and chance.random() < 0.3:
                tensor[chance.randrange(len(tensor))] = chance.choice([-1, 2**31 - 1, -(2**31), chance.randrange(200)])
        return plan

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.set_num_threads(chance.choice([1, 1, 2, 3]))
        edges, rows, sources = chance.choice([0, 1, 7, 100, 999]), chance.randrange(40), chance.randrange(40)
        channels, dtype = chance.choice([0, 1, 3, 8, 13, 16, 33, 100, 128, 200]), chance.choice(dtypes)
        src, dst = placed(chance, index(edges, sources)), placed(chance, index(edges, rows))
        x = placed(chance, torch.randn(sources, channels).mul(9).to(dtype))
        w = placed(chance, torch.randn(edges, channels).mul(9).to(dtype))
        if chance.random() < 0.2:
            w = w.t().contiguous().t()
        if chance.random() < 0.1:
            fuzz_chain(chance)
        try:
            kind = chance.randrange(8)
            if kind == 6:
                got, expected = sample(chance)
            elif kind == 0:
                plan = (
                    ScatterPlan.from_index(dst, rows).set_tiles(chance.randrange(1, 50))
                    if chance.random() < 0.5
                    else None
                )
                reduce = chance.choice(["sum", "mean", "min", "max"])
                got = ops.scatter(w, dst, 0, None, rows, reduce, plan)
                with library.without_native():
                    expected = ops.scatter(w, dst, 0, None, rows, reduce, plan)
            elif kind == 1:
                x, w = (tensor if dtype.is_floating_point else tensor.float() for tensor in (x, w))
                plans = EdgePlan(src=ScatterPlan.from_index(src, sources), dst=ScatterPlan.from_index(dst, rows))
                arguments = (src, dst, rows, plans if chance.random() < 0.5 else None)
                x.requires_grad_()
                w.requires_grad_()
                got = torch.cat(torch.autograd.grad(ops.cfconv(x, w, *arguments).sum(), (x, w)))
                with library.without_native():
                    expected = torch.cat(torch.autograd.grad(ops.cfconv(x, w, *arguments).sum(), (x, w)))
            elif kind == 2:  # plans that no public function would make
                plan = corrupt(torch.ops.popgeo.plan(index(edges, rows), rows))
                got = expected = torch.ops.popgeo.scatter_sum(w, index(edges, rows), rows, *plan, chance.randrange(9))
            elif kind == 3:
                plan = corrupt(torch.ops.popgeo.plan(index(edges, sources), sources))
                x, w, grad = x.float(), w.float(), torch.randn(rows, channels)
                got = expected = torch.ops.popgeo.cfconv_backward(grad, x, w, src, dst, None, None, *plan)[0]
            elif kind == 4:
                got, expected = interactions(chance, sources, src, index(edges, sources))
            elif kind == 5:  # plans that no public function would make
                got = expected = broken_interaction(chance, edges, rows, src, dst, corrupt)
            else:
                pointers = sorted(chance.randrange(-1, edges + 2) for _ in range(chance.randrange(1, 9)))
                indptr = placed(chance, torch.tensor(pointers))
                got = ops.segment_csr(w, indptr)
                with library.without_native():
                    expected = ops.segment_csr(w, indptr)
            same = torch.allclose(got, expected, rtol=1e-3, atol=1e-3) if kind == 4 else torch.equal(got, expected)
            assert same, (kind, edges, rows, channels, dtype)
            computed += 1
        except ValueError:
            refused += 1
    print(f"fuzz: {computed} calls computed, {refused} refused, none left its arrays (seed {seed})")
    assert computed
    assert refused


def interactions(chance: random.Random, nodes: int, src: Any, dst: Any) -> tuple[Any, Any]:
    """Return the result and all gradients of an interaction, by the kernels and by plain torch in float64."""
    import torch

    from popgeo.ops.interaction import interaction
    from popgeo.ops.interaction_call import InteractionCall

    channels, half_list, has_vectors = chance.choice([1, 3, 16, 33, 100]), chance.random() < 0.5, chance.random() < 0.4
    waves = torch.randn(4, channels * (3 if has_vectors else 1), dtype=torch.float64)
    x = torch.randn(nodes, channels * (5 if has_vectors else 1))
    r, direction = 6 * torch.rand(len(src)), torch.randn(len(src), 3) if has_vectors else None
    grid = torch.linspace(0, 5, chance.choice([150, 257]), dtype=torch.float64)

    def run(dtype: torch.dtype, is_plain: bool) -> torch.Tensor:
        given = (placed(chance, t.to(dtype, copy=True)).requires_grad_() for t in (x, r, direction) if t is not None)
        rows, apart, *toward = given
        factors = waves.clone().requires_grad_()
        table = torch.stack([torch.sin(k * grid) for k in range(1, 5)], dim=1) @ factors
        axes = toward[0] if toward else None
        if is_plain:
            out = InteractionCall(rows, table, apart, axes, src, dst, nodes, 5.0, half_list).sums()
        else:
            out = interaction(rows, table, apart, src, dst, nodes, 5.0, direction=axes, half_list=half_list)
        made = [out, *torch.autograd.grad(out.sum(), [rows, factors, apart, *toward])]
        return torch.cat([part.detach().flatten() / (1 + part.detach().abs().max()) for part in made if part.numel()])

    return run(torch.float32, False).float(), run(torch.float64, True).float()


def broken_interaction(chance: random.Random, edges: int, nodes: int, src: Any, dst: Any, corrupt: Any) -> Any:
    """Compute the sums of an interaction with a plan of different edges, or with a changed plan."""
    import torch

    op = torch.ops.popgeo
    x, r, table = torch.randn(nodes, 5), 6 * torch.rand(edges), torch.randn(40, 5)
    plan, weights = op.interaction_plan(src.long() % max(nodes, 1), dst.long(), r, 5.0, nodes, nodes, 40)
    corrupt((plan, plan[4:]))
    if chance.random() < 0.25:
        src, dst, r = (torch.cat([t, t[:1]]) for t in (src, dst, r))
    arguments = x, table, r, None, src, dst, nodes, 5.0, False, plan, weights
    out = op.interaction(*arguments)
    op.interaction_backward(*arguments, torch.randn(nodes, 5), [True, True, True, False])
    return out.nan_to_num()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to fuzz, after a build of half a minute")
    parser.add_argument("--seed", type=int, default=0, help="of the random calls")
    arguments = parser.parse_args()
    if "POPGEO_FUZZED_LIBRARY" in os.environ:
        fuzz(Path(os.environ["POPGEO_FUZZED_LIBRARY"]), arguments.seconds, arguments.seed)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return rerun(build(Path(folder)), arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
