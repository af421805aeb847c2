"""A size has one form, made by `quantity` in thousands, in reports and pages."""

import re

import pytest

from popgeo.quantity import bytes_of, quantity
from tests.conftest import REPOSITORY


def test_a_size_never_shows_four_digits_before_its_point():
    numbers = [0, 12, 999, 999.6, 1000, 99_949, 999_949, 999_951, 1e6, 638_976, 5.4e9, 9.999999e11]
    written = [quantity(number, "B") for number in numbers]
    assert written[3:5] == ["1.0 kB", "1.0 kB"]
    assert written[7:10] == ["1.0 MB", "1.0 MB", "639.0 kB"]
    assert all(re.fullmatch(r"\d{1,3}(\.\d)? [kMGT]?B", words) for words in written), written
    assert quantity(1.2e16, "B") == "12,000.0 TB"


def test_no_part_of_the_package_or_its_pages_counts_bytes_in_two_ways():
    # The manufacturer's 624 KiB appears in the docstring of the target and on the page of the cost model.
    allowed = {"popgeo/ipu/target.py", "docs/cost_model.md"}
    folders = ("popgeo", "docs", "benchmarks", "examples", "scripts")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".md")]
    binary = [
        str(path.relative_to(REPOSITORY))
        for path in files
        if re.search(r"\b[KMG]iB\b", path.read_text()) and path.parent.name != "notebooks"
    ]
    assert set(binary) <= allowed


def test_a_memory_is_read_in_any_notation():
    texts = {
        "12 GB": 12e9,
        "12gb": 12e9,
        "1,500 kB": 1.5e6,
        "0.5 TB": 5e11,
        "2 GiB": 2 * 2**30,
        "7 B": 7,
        "1_000 MB": 1e9,
    }
    assert {text: bytes_of(text) for text in texts} == texts
    assert (bytes_of(3.0), bytes_of(2**40)) == (3, 2**40)


@pytest.mark.parametrize(
    "size", ["12", "12 G", "GB", "-1 GB", "1.2.3 GB", "12 Gb/s", 0, -1.0, "0 B", True, float("nan")]
)
def test_what_is_no_memory_is_refused(size):
    with pytest.raises(ValueError, match=r"The memory is .*; (pass a number of bytes|it must be more than 0)"):
        bytes_of(size)
