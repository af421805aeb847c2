"""Calls the compiled kernels from several threads at once under ThreadSanitizer: no race, and each thread its own bits.

Builds the library and random_calls.cpp with -fsanitize=thread; nothing of Python or torch is in the process. With Clang
the kernels' own threads are watched too: its OpenMP says through Archer what waits for what. GCC's OpenMP does not, so
there the kernels run without, and the threads are those that call.

    python -m tests.native.check_threads --calls 400
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.native.fuzz_aarch64 import CALLS, CSRC, FLAGS

SANITIZE = ["-O1", "-g", "-fPIC", "-fsanitize=thread"]


def compiler() -> str:
    """Return Clang if it is installed, because its OpenMP can be checked too, and otherwise GCC."""
    return os.environ.get("CXX") or shutil.which("clang++") or "g++"


def archer(name: str) -> str | None:
    """Return the path of Archer, which tells the sanitizer of OpenMP's threads; None if the compiler has none."""
    beside = Path(shutil.which(name) or name).resolve().parent.parent / "lib" / "libarcher.so"
    return str(beside) if beside.is_file() else None


def build(folder: Path, name: str, openmp: list[str]) -> tuple[Path, Path]:
    """Build the program and the library, both with the thread sanitizer."""
    flags = [*FLAGS[:3], *SANITIZE, *openmp, "-DPOPGEO_SOURCES=0u"]
    avx = ["-mavx2", "-mf16c", "-mfma", "-D__FP_FAST_FMAF=1"] if "avx2" in Path("/proc/cpuinfo").read_text() else []
    sources = sorted(CSRC.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compile_one(pair: tuple[Path, Path]) -> None:
        subprocess.run([name, *flags, *avx, "-c", str(pair[0]), "-o", str(pair[1])], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, zip(sources, objects, strict=True)))
    library, program = folder / "_popgeo.so", folder / "random_calls"
    subprocess.run([name, "-shared", *flags, *map(str, objects), "-o", str(library)], check=True)
    command = [name, *FLAGS[:3], *SANITIZE, *openmp, f"-I{CSRC}", str(CALLS), "-pthread", "-ldl", "-o", str(program)]
    subprocess.run(command, check=True)
    return program, library


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400, help="how many each thread makes")
    parser.add_argument("--first", type=int, default=0, help="number of the first one, which decides its input")
    parser.add_argument("--threads", type=int, default=3, help="that call at the same time")
    arguments = parser.parse_args()
    name = compiler()
    tool = archer(name)
    with tempfile.TemporaryDirectory() as folder:
        program, library = build(Path(folder), name, ["-fopenmp"] if tool else [])
        numbers = [arguments.first, arguments.first + arguments.calls, arguments.threads]
        options = "halt_on_error=0 exitcode=66" + (" ignore_noninstrumented_modules=1" if tool else "")
        environment = os.environ | {"TSAN_OPTIONS": options} | ({"OMP_TOOL_LIBRARIES": tool} if tool else {})
        environment.pop("OMP_NUM_THREADS", None)
        ended = subprocess.run(
            [str(program), str(library), *map(str, numbers)], env=environment, stdout=subprocess.DEVNULL, check=False
        )
    watched = "and those of the kernels" if tool else "without those of the kernels (Clang's OpenMP has them watched)"
    outcome = "no race, the same bits in all" if ended.returncode == 0 else f"exit status {ended.returncode}"
    print(f"threads: {arguments.calls} calls in each of {arguments.threads} threads, {watched}: {outcome}")
    return int(ended.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
