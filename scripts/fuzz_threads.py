#!/usr/bin/env python3
"""Uses steps, loaders, kernels and kept steps from several threads at once, with Ctrl-C at random moments, and counts.

    python scripts/fuzz_threads.py --minutes 10 [--seed 0] [--kinds loader interrupt]
    python scripts/fuzz_threads.py --cases 40

Each case draws what is shared, how many threads share it and when they are interrupted. It ends right where each thread
had the results that it has alone, or in a clear error (a ValueError); after it no thread may be left, and torch's own
random numbers are those from before. What ends otherwise is printed with what shows it again: `--seed S --only N`.
The exit status says whether there was any; a case of more than a minute prints where its threads are and ends all.
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
PATIENCE = 5.0  # seconds until a thread that is ending must have ended
GRAPHS = [graph(n % 7 + 1, 2 * n % 11 + 1, seed=n) for n in range(60)]

GraphWork = Callable[[int], bool]  # of the thread of this number: whether its results are right


class Wrong(Exception):
    """A thread had other results than alone."""


class Net(nn.Module):
    """Long enough for another thread to come in between; its weights are the same each time."""

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
    """Its gradient is what it is given, whatever its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def in_threads(work: GraphWork, number: int) -> None:
    """Runs the work in that many threads, and raises what one of them raised."""
    failed: list[BaseException] = []

    def run(index: int) -> None:
        try:
            if not work(index):
                raise Wrong(f"thread {index} had other results than alone")
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
    """Gives a function that sets off a Ctrl-C some moments later; none comes once the block has been left."""

    def interrupt(*of_the_signal: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        # Again after a second: Python drops an exception that comes while a finalizer runs.
        yield lambda: signal.setitimer(signal.ITIMER_REAL, draw.uniform(2e-5, longest), 1.0) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def forward(draw: random.Random, folder: Path) -> None:
    """Threads share a compiled forward pass."""
    model = Net()
    compiles: Any = draw.choice([compile_forward, inference_model])
    step = compiles(model)
    num_rows = draw.choice([1, 8, 64])
    given = [torch.full((num_rows, 24), float(index)) for index in range(4)]
    expected = [model(x).detach() for x in given]
    in_threads(lambda i: all(torch.allclose(step(given[i]), expected[i], atol=1e-5) for _ in range(30)), 4)


def training(draw: random.Random, folder: Path) -> None:
    """Threads share a training step, whose updates add up in any order."""
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
    """Threads share a loader, over memory or over a store whose blocks are compared as they are first used."""
    data: Any = GRAPHS if draw.random() < 0.5 else store(draw, folder)
    shared = FixedSizeDataLoader(data, batch_size=draw.choice([2, 5, 9]), background=draw.random() < 0.5)
    expected = batches(shared)

    def work(index: int) -> bool:
        if index == 1:  # leaves in the middle
            next(iter(shared))
            return True
        return same(batches(shared), expected)

    in_threads(work, draw.randint(2, 4))


def store(draw: random.Random, folder: Path) -> FlatStore:
    """Written again, so that none of its blocks has been compared yet."""
    return write(GRAPHS, folder / f"store-{draw.random()}", progress_bar=False)


def batches(shared: Any) -> list[list[Tensor]]:
    """Copies of what an epoch gives."""
    return [
        [part.clone() for _, part in sorted(batch.to_dict().items()) if isinstance(part, Tensor)] for batch in shared
    ]


def same(ones: list[list[Tensor]], others: list[list[Tensor]]) -> bool:
    """Whether two epochs are equal, bit by bit."""
    if [len(one) for one in ones] != [len(other) for other in others]:
        return False
    return all(
        torch.equal(a, b) for one, other in zip(ones, others, strict=True) for a, b in zip(one, other, strict=True)
    )


def kernels(draw: random.Random, folder: Path) -> None:
    """Threads call operations, each of several threads itself."""
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
    """Threads compile one model at once, with one folder of kept steps."""
    options, x = StepOptions(cache_dir=folder / f"steps-{draw.random()}"), torch.ones(3, 24)
    nets = [Net() for _ in range(3)]  # not in the threads: torch's one generator draws the weights
    expected = nets[0](x).detach()
    in_threads(lambda n: torch.allclose(compile_forward(nets[n], options=options)(x), expected, atol=1e-5), 3)
    if any(path.suffix != ".popgeo" for path in Path(str(options.cache_dir)).iterdir()):
        raise Wrong("temporary files are left in the folder of kept steps")


def interrupt(draw: random.Random, folder: Path) -> None:
    """Ctrl-C in steps with random numbers, next to a thread that runs a step of its own."""
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
        raise Wrong("a step next to an interrupted one had other results")


def epoch(draw: random.Random, folder: Path) -> None:
    """Ctrl-C in an epoch that a thread prepares; the next epoch is whole."""
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
        raise Wrong("the epoch after an interrupt has other batches")


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "forward": forward, "training": training, "loader": loader, "kernels": kernels, "kept step": kept,
    "interrupt": interrupt, "epoch": epoch,
}  # fmt: skip


def run(kind: str, draw: random.Random, folder: Path) -> tuple[str, str]:
    """How a case ends, and why."""
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
        return "generator", "torch's own random numbers are others than before"
    return outcome


def fuzz(args: argparse.Namespace) -> Counter[tuple[str, str]]:
    """Runs cases until the time is over, or that many have run; returns how many of each kind ended how."""
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
    parser.add_argument("--minutes", type=float, default=1.0, help="how long, where --cases does not say how many")
    parser.add_argument("--cases", type=int, default=0, help="how many")
    parser.add_argument("--seed", default="0", help="what is drawn is drawn from this")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], help="only these kinds of cases")
    parser.add_argument("--only", type=int, help="the number of the one case to run")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    tqdm.monitor_interval = 0  # it would keep a thread of its own
    counts = fuzz(args)
    print(f"{'':<12}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES))
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:<12}" + "".join(f"{counts[kind, outcome]:>13,}" for outcome in OUTCOMES))
    print(f"{counts.total():,} cases")
    return int(any(counts[kind, outcome] for kind in KINDS for outcome in OUTCOMES[2:]))


if __name__ == "__main__":
    sys.exit(main())
