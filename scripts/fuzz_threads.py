#!/usr/bin/env python3
"""Use steps, loaders, kernels and kept steps from several threads, with Ctrl-C at random moments, and count outcomes.

    python scripts/fuzz_threads.py --minutes 10 [--seed 0] [--kinds loader interrupt]
    python scripts/fuzz_threads.py --cases 40

Each case draws the shared object, the number of threads and the moments of interrupts. A case ends right if each thread
had the same results as without other threads, or clear with a ValueError. Afterwards no thread may be left, and the
state of torch's random numbers must be unchanged. Other outcomes are printed with the arguments that repeat them:
`--seed S --only N`. The exit status is 1 if there were any. A case of more than a minute prints the stack of each
thread and ends the program.
"""

import argparse
import faulthandler
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from popgeo import FixedSizeDataLoader, StepOptions, compile_forward, compile_step, ops
from popgeo.data import FlatStore, write
from popgeo.ipu import Options, inference_model
from tests.support.graphs import graph

OUTCOMES = ("right", "clear", "unclear", "wrong", "thread left", "generator")
SECONDS = 60
PATIENCE = 5.0  # seconds for a thread to end
GRAPHS = [graph(n % 7 + 1, 2 * n % 11 + 1, seed=n) for n in range(60)]

GraphWork = Callable[[int], bool]  # thread number -> whether its results are right


class Wrong(Exception):
    """Raised when a thread's results differ from its results without other threads."""


class Net(nn.Module):
    """A model that is slow enough to be interrupted by another thread; its weights are always the same."""

    def __init__(self, *, draws: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))
        self.draws = draws

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu() + (torch.rand_like(x) if self.draws else 0)
        return x


class Total(nn.Module):
    """A model with a gradient equal to its input, for any weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def in_threads(work: GraphWork, number: int) -> None:
    """Run the work in `number` threads; raise an exception of a thread again."""
    failed: list[BaseException] = []

    def run(index: int) -> None:
        try:
            if not work(index):
                raise Wrong(f"thread {index} had different results than without other threads")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        raise error


@contextmanager
def alarms(draw: random.Random, longest: float) -> Iterator[Callable[[], None]]:
    """Yield a function that triggers a Ctrl-C a few moments later; no Ctrl-C arrives after the block."""

    def interrupt(*of_the_signal: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        # Repeat it after a second, since Python drops an exception raised while a finalizer runs.
        yield lambda: signal.setitimer(signal.ITIMER_REAL, draw.uniform(2e-5, longest), 1.0) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def forward(draw: random.Random, folder: Path) -> None:
    """Share a compiled forward pass between threads."""
    model = Net()
    compiles: Any = draw.choice([compile_forward, inference_model])
    step = compiles(model)
    num_rows = draw.choice([1, 8, 64])
    given = [torch.full((num_rows, 24), float(index)) for index in range(4)]
    expected = [model(x).detach() for x in given]
    in_threads(lambda i: all(torch.allclose(step(given[i]), expected[i], atol=1e-5) for _ in range(30)), 4)


def training(draw: random.Random, folder: Path) -> None:
    """Share a training step between threads; the sum of its updates does not depend on their order."""
    model = Total()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=1.0))
    number, times = draw.randint(2, 4), draw.randint(5, 40)

    def work(index: int) -> bool:
        for _ in range(times):
            step(torch.full((64,), float(index + 1), dtype=torch.float64))
        return True

    in_threads(work, number)
    if not torch.equal(model.weight, torch.full_like(model.weight, -times * sum(range(number + 1)))):
        raise Wrong("updates were lost or doubled")


def loader(draw: random.Random, folder: Path) -> None:
    """Share a loader between threads, over memory or over a store that checks each block at its first use."""
    data: Any = GRAPHS if draw.random() < 0.5 else store(draw, folder)
    shared = FixedSizeDataLoader(data, batch_size=draw.choice([2, 5, 9]), background=draw.random() < 0.5)
    expected = batches(shared)

    def work(index: int) -> bool:
        if index == 1:  # stops after the first batch
            next(iter(shared))
            return True
        return same(batches(shared), expected)

    in_threads(work, draw.randint(2, 4))


def store(draw: random.Random, folder: Path) -> FlatStore:
    """Write a new store, so that no block has been checked yet."""
    return write(GRAPHS, folder / f"store-{draw.random()}", progress_bar=False)


def batches(shared: Any) -> list[list[Tensor]]:
    """Return copies of an epoch's batches."""
    return [
        [part.clone() for _, part in sorted(batch.to_dict().items()) if isinstance(part, Tensor)] for batch in shared
    ]


def same(ones: list[list[Tensor]], others: list[list[Tensor]]) -> bool:
    """Check whether two epochs are equal, bit by bit."""
    if [len(one) for one in ones] != [len(other) for other in others]:
        return False
    return all(
        torch.equal(a, b) for one, other in zip(ones, others, strict=True) for a, b in zip(one, other, strict=True)
    )


def kernels(draw: random.Random, folder: Path) -> None:
    """Call multi-threaded operations from several threads."""
    edges, nodes, channels = draw.choice([7, 900, 4000]), draw.choice([3, 80]), draw.choice([1, 16, 33])
    generator = torch.Generator().manual_seed(draw.randrange(99))
    x, w = (torch.randn(size, channels, generator=generator) for size in (nodes, edges))
    src, dst = torch.randint(nodes, (2, edges), generator=generator)
    plan = ops.ScatterPlan.from_index(dst, nodes)

    def results() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        out = ops.cfconv(leaf, w, src, dst, nodes)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaf), ops.scatter(w, dst, 0, None, nodes, "max", plan)]

    expected, before = results(), torch.get_num_threads()
    torch.set_num_threads(draw.choice([1, 2, 3]))
    try:
        in_threads(lambda _: all(all(map(torch.equal, results(), expected)) for _ in range(5)), draw.randint(2, 4))
    finally:
        torch.set_num_threads(before)


def kept(draw: random.Random, folder: Path) -> None:
    """Compile one model from several threads at once, with one folder of kept steps."""
    options, x = StepOptions(cache_dir=folder / f"steps-{draw.random()}"), torch.ones(3, 24)
    nets = [Net() for _ in range(3)]  # made outside the threads, since they share torch's generator
    expected = nets[0](x).detach()
    in_threads(lambda n: torch.allclose(compile_forward(nets[n], options=options)(x), expected, atol=1e-5), 3)
    if any(path.suffix != ".popgeo" for path in Path(str(options.cache_dir)).iterdir()):
        raise Wrong("temporary files are left in the folder of kept steps")


def interrupt(draw: random.Random, folder: Path) -> None:
    """Interrupt steps with random numbers while another thread runs its own step."""
    step, x = inference_model(Net(draws=True), Options(random_seed=3)), torch.zeros(8, 24)
    model, ended = Net(), threading.Event()
    other, expected = compile_forward(model), model(x).detach()
    step(x), other(x)
    before = torch.get_rng_state()

    def beside() -> None:
        while not ended.is_set():
            if not torch.allclose(other(x), expected, atol=1e-5):
                failed.append(True)

    failed: list[bool] = []
    thread = threading.Thread(target=beside)
    thread.start()
    try:
        with alarms(draw, 2e-3) as ring:
            for _ in range(5):
                try:
                    ring()
                    while True:
                        step(x)
                except KeyboardInterrupt:
                    if not torch.equal(torch.get_rng_state(), before):
                        raise Wrong("an interrupt changed torch's random numbers") from None
    finally:
        ended.set()
        thread.join()
    if failed or step(x).shape != x.shape:
        raise Wrong("a step next to an interrupted step had different results")


def epoch(draw: random.Random, folder: Path) -> None:
    """Interrupt an epoch that a thread prepares; the next epoch must be complete."""
    shared = FixedSizeDataLoader(GRAPHS, batch_size=4, background=True, shuffle=True, seed=draw.randrange(9))
    expected, passed = len(batches(shared)), 0
    with alarms(draw, 1e-2) as ring:
        for _ in range(4):
            try:
                ring()
                while True:
                    passed += sum(1 for _ in shared)
            except KeyboardInterrupt:
                pass
    if len(batches(shared)) != expected:
        raise Wrong("the epoch after an interrupt has a different number of batches")


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "forward": forward, "training": training, "loader": loader, "kernels": kernels, "kept step": kept,
    "interrupt": interrupt, "epoch": epoch,
}  # fmt: skip


def run(kind: str, draw: random.Random, folder: Path) -> tuple[str, str]:
    """Run a case; return the outcome and the reason."""
    others, outcome = set(sys._current_frames()), ("right", "")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    try:
        KINDS[kind](draw, folder)
    except Wrong as error:
        outcome = "wrong", str(error)
    except ValueError as error:
        outcome = "clear", str(error)
    except (Exception, KeyboardInterrupt) as error:
        outcome = "unclear", repr(error)
    end = time.monotonic() + PATIENCE
    while (left := set(sys._current_frames()) - others) and time.monotonic() < end:
        time.sleep(0.01)
    if left:
        return "thread left", str(left)
    if not torch.equal(torch.get_rng_state(), before):
        return "generator", "the state of torch's random numbers has changed"
    return outcome


def fuzz(args: argparse.Namespace) -> Counter[tuple[str, str]]:
    """Run cases for `args.minutes` or `args.cases` cases; return the number of each outcome by kind."""
    counts: Counter[tuple[str, str]] = Counter()
    end, kinds = time.monotonic() + 60 * args.minutes, args.kinds or [*KINDS]
    folder = Path(tempfile.mkdtemp(prefix="popgeo-threads"))
    try:
        for number in [args.only] if args.only is not None else range(args.cases or 10**9):
            if not args.cases and args.only is None and time.monotonic() > end:
                break
            kind = kinds[number % len(kinds)]
            faulthandler.dump_traceback_later(SECONDS, exit=True, file=2)
            outcome, why = run(kind, random.Random(f"{args.seed} {number}"), folder)
            counts[kind, outcome] += 1
            if outcome not in ("right", "clear") or args.only is not None:
                print(f"{outcome}: {kind}, --seed {args.seed} --only {number}: {why}", flush=True)
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(folder, ignore_errors=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="run time without --cases (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=0, help="number of cases")
    parser.add_argument("--seed", default="0", help="seed of all random choices")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], help="kinds of cases (default: all)")
    parser.add_argument("--only", type=int, help="number of the only case to run")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    tqdm.monitor_interval = 0  # no monitor thread of tqdm
    counts = fuzz(args)
    print(f"{'':<12}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES))
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:<12}" + "".join(f"{counts[kind, outcome]:>13,}" for outcome in OUTCOMES))
    print(f"{counts.total():,} cases")
    return int(any(counts[kind, outcome] for kind in KINDS for outcome in OUTCOMES[2:]))


if __name__ == "__main__":
    sys.exit(main())
