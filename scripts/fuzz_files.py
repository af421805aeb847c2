#!/usr/bin/env python3
"""Damage files of every kind that popgeo reads, and count the outcomes of reading them.

    python scripts/fuzz_files.py --minutes 10 [--seed 0] [--kinds store report]
    python scripts/fuzz_files.py --cases 300

Cases run in a child process, so that a crash ends only the child. A case ends right (same result as the whole file), in
a clear error (a ValueError, or a missing file), in an unclear error, wrong silently, in a crash, or not within a
minute. It must not start a program or write to a file outside of its folder. Every case except right and clear is
printed with the arguments that repeat it: `--seed S --only N`. The exit status is 1 if there was such a case.
"""

import argparse
import json
import os
import queue
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

PYTHON = (sys.executable,)
REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

OUTCOMES = ("right", "clear", "unclear", "wrong", "touched", "crash", "endless")
SECONDS, MEMORY = 60, 2 << 30  # seconds and bytes per case
STARTS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "pty.spawn")


def work(args: argparse.Namespace) -> None:
    """Run the cases with the numbers from standard input, and print each outcome as a line of JSON: the child."""
    import torch  # not needed by the parent

    from tests.fuzz.damage_files import damage
    from tests.fuzz.file_formats import FORMATS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    home, touched, watched = Path(args.home), list[str](), [False]
    allowed = (str(home), "/dev/null", tempfile.gettempdir() + "/torchinductor")

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if not watched[0]:
            return
        writes = event == "open" and isinstance(given[1], str) and not set("wax+").isdisjoint(given[1])
        if event == "open" and given[1] is None:
            writes = bool(given[2] & (os.O_WRONLY | os.O_RDWR))
        if event in STARTS or (writes and not str(given[0]).startswith(allowed) and not isinstance(given[0], int)):
            touched.append(f"{event} {given[0]!r:.80}")

    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
    sys.addaudithook(watch)
    kinds = args.kinds or [*FORMATS]
    whole: dict[str, tuple[Path, str]] = {}
    for kind in kinds:
        folder = home / "whole" / kind
        folder.mkdir(parents=True, mode=0o700)
        FORMATS[kind].make(folder)
        once = home / "once" / kind
        shutil.copytree(folder, once)
        whole[kind] = folder, FORMATS[kind].use(once)
    print(json.dumps(kinds), flush=True)
    for line in sys.stdin:
        number = int(line)
        draw = random.Random(f"{args.seed} {number}")
        kind = kinds[number % len(kinds)]
        folder, outside = home / "case" / "folder", home / "outside"
        shutil.rmtree(home / "case", ignore_errors=True)
        shutil.copytree(whole[kind][0], folder)
        outside.write_bytes(b"a bystander" * 100)
        form = FORMATS[kind]
        how = damage(form, folder, outside, draw)
        touched.clear()
        watched[0] = True
        outcome, why = "right", ""
        try:
            given = form.use(folder)
            if given != whole[kind][1] and how != "field" and not form.differs:
                outcome, why = "wrong", "the results differ from the whole file's"
        except AssertionError as error:
            outcome, why = "wrong", str(error)
        except (ValueError, FileNotFoundError) as error:
            outcome, why = "clear", str(error)
            if isinstance(error, UnicodeError | json.JSONDecodeError) or len(why) < 20:
                outcome, why = "unclear", repr(error)
        except Exception as error:
            outcome, why = "unclear", repr(error)
        watched[0] = False
        if touched or outside.read_bytes() != b"a bystander" * 100:
            outcome, why = "touched", str(touched)
        print(json.dumps([number, kind, how, outcome, why[:300]]), flush=True)


def _address_space() -> int:
    """Return the bytes mapped by this process; 0 if the system does not report them."""
    try:
        return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0


class Child:
    """A child process that runs cases one by one."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="popgeo-fuzz"))
        command = [*PYTHON, __file__, "--child", "--home", str(self.home), "--seed", str(args.seed)]
        command += ["--kinds", *args.kinds] if args.kinds else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        ready = self.lines.get(timeout=300)
        if not ready:
            raise RuntimeError(f"The child cannot start; run it by hand: {' '.join(command)}")
        self.kinds: list[str] = json.loads(ready)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def run(self, number: int) -> list[Any]:
        """Run a case and return its outcome; after a crash or a timeout, the child cannot run another case."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        try:
            line = self.lines.get(timeout=SECONDS)
        except queue.Empty:
            return [number, "", "", "endless", f"no end within {SECONDS} s"]
        return json.loads(line) if line else [number, "", "", "crash", f"exit status {self.process.wait()}"]

    def close(self) -> None:
        with self.process:  # closes its pipes
            self.process.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def fuzz(args: argparse.Namespace) -> Counter[tuple[str, str]]:
    """Run cases for `args.minutes` or `args.cases` cases; return the number of each outcome by kind."""
    counts: Counter[tuple[str, str]] = Counter()
    end, numbers = time.monotonic() + 60 * args.minutes, iter(range(args.cases or 10**9))
    child = Child(args)
    try:
        for number in [args.only] if args.only is not None else numbers:
            if not args.cases and time.monotonic() > end:
                break
            _, _, how, outcome, why = child.run(number)
            kind = child.kinds[number % len(child.kinds)]
            if outcome in ("crash", "endless"):
                child.close()
                child = Child(args)
            counts[kind, outcome] += 1
            if outcome not in ("right", "clear") or args.only is not None:
                print(f"{outcome}: {kind}, {how}, --seed {args.seed} --only {number}: {why}", flush=True)
    finally:
        child.close()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="run time without --cases (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=0, help="number of cases")
    parser.add_argument("--seed", default="0", help="seed of all random choices")
    parser.add_argument("--kinds", nargs="+", help="kinds of files (default: all)")
    parser.add_argument("--only", type=int, help="number of the only case to run")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--home", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        work(args)
        return 0
    counts = fuzz(args)
    kinds = sorted({kind for kind, _ in counts})
    print(f"{'':<20}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES))
    for kind in kinds:
        print(f"{kind:<20}" + "".join(f"{counts[kind, outcome]:>9,}" for outcome in OUTCOMES))
    print(f"{counts.total():,} cases")
    return int(any(counts[kind, outcome] for kind in kinds for outcome in OUTCOMES[2:]))


if __name__ == "__main__":
    sys.exit(main())
