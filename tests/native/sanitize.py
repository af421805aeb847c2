"""Runs tests with the compiled library built under the address and undefined-behaviour sanitizers.

    python tests/native/sanitize.py [pytest arguments; by default the folders below]

A read or write out of bounds, a null pointer, an overflow or a number at an address that its type does not allow ends
the run with the sanitizer's report. Leaks of Python's own are not looked for. It takes about six minutes of one core.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.native.fuzz import ROOT, build, preloaded

FOLDERS = ["tests/ops", "tests/data", "tests/loader", "tests/sampling", "tests/packing"]
FOLDERS += ["tests/potentials/test_tensor_product.py", "tests/engine/test_products.py"]


def main(arguments: list[str]) -> int:
    if "POPGEO_FUZZED_LIBRARY" in os.environ:
        import pytest

        from popgeo.native import library

        library._PATH = Path(os.environ["POPGEO_FUZZED_LIBRARY"])
        assert library.is_available(), library.reason()
        # The plugin of the installed package would be rewritten, were it not imported yet.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return int(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", *quiet, *(arguments or FOLDERS)]))
    with tempfile.TemporaryDirectory() as folder:
        environment = preloaded(build(Path(folder)))
        return subprocess.run([sys.executable, __file__, *arguments], env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
