"""A size has one form, made by `quantity` in thousands, in reports and pages."""

import re

from popgeo.quantity import quantity
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
