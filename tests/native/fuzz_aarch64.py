"""Makes the same random calls of the compiled kernels here and on an emulated 64-bit ARM processor: all bits agree.

Builds the library with a cross compiler, and random_calls.cpp for both processors; nothing of Python or torch is
emulated. What the kernels compute here is held against torch by the tests and by fuzz.py. Which NaN a result is counts
for nothing: processors make different ones.

    python tests/native/fuzz_aarch64.py --calls 4000
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from popgeo.native import library

CSRC = Path(library.__file__).with_name("csrc")
CALLS = Path(__file__).with_name("random_calls.cpp")
HERE, CROSS = os.environ.get("CXX", "g++"), "aarch64-linux-gnu-g++"
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
FLAGS = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror"]  # those of setup.py


def missing() -> str:
    """Return the names of missing programs and the command that installs them; empty if none is missing."""
    absent = [program for program in (HERE, CROSS, EMULATOR[0]) if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install g++ g++-aarch64-linux-gnu qemu-user"
    return library.reason()


def build(folder: Path, optimize: str) -> Path:
    """Build the library for ARM."""
    flags = [*FLAGS, optimize, "-fPIC", "-fopenmp", f"-DPOPGEO_SOURCES={library.sources_checksum()}u"]
    sources = sorted(CSRC.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compile_one(pair: tuple[Path, Path]) -> None:
        source, target = pair
        subprocess.run([CROSS, *flags, "-c", str(source), "-o", str(target)], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, zip(sources, objects, strict=True)))
    path = folder / "_popgeo_aarch64.so"
    subprocess.run([CROSS, "-shared", "-fopenmp", *map(str, objects), "-o", str(path)], check=True)
    return path


def build_calls(compiler: str, path: Path) -> Path:
    subprocess.run([compiler, *FLAGS, "-O1", f"-I{CSRC}", str(CALLS), "-pthread", "-ldl", "-o", str(path)], check=True)
    return path


def compare(first: int, num_calls: int, optimize: str) -> list[str]:
    """Return the lines of calls with different results, ours before ARM's, and print the number of calls.

    Raises:
        subprocess.CalledProcessError: a build failed, or a call ended the process.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        foreign = [*EMULATOR, str(build_calls(CROSS, folder / "calls_aarch64")), str(build(folder, optimize))]
        native = [str(build_calls(HERE, folder / "calls")), str(library._PATH)]
        numbers = [str(first), str(first + num_calls)]
        outputs = [
            subprocess.run([*command, *numbers], capture_output=True, text=True, check=True).stdout.splitlines()
            for command in (native, foreign)
        ]
    ours, theirs = outputs
    assert len(ours) == len(theirs) == num_calls
    refused = sum("status 1" in line for line in ours)
    print(f"fuzz-aarch64: {num_calls - refused} calls computed, {refused} refused, from call {first}")
    return [line for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1] for line in pair]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first one, which decides its input")
    parser.add_argument("--optimize", default="-O3", help="of the library for ARM; the build is faster with -O1")
    arguments = parser.parse_args()
    if missing():
        print(f"fuzz-aarch64: {missing()}", file=sys.stderr)
        return 2
    different = compare(arguments.first, arguments.calls, arguments.optimize)
    print("\n".join(different) or "fuzz-aarch64: the same bits as here")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
