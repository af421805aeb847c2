"""The compiled library on 64-bit ARM, as far as an emulator shows."""

import pytest

from popgeo.native import library
from tests.native import fuzz_aarch64


def skip_unless_it_can_run() -> None:
    reason = fuzz_aarch64.missing()
    if reason:
        pytest.skip(reason)
    if not library.function("popgeo_interaction_is_served", "", "q")():
        pytest.skip("this processor has no fused multiply-adds, without which bits differ")


def test_every_kernel_gives_the_same_bits_on_arm(capfd):
    skip_unless_it_can_run()
    assert fuzz_aarch64.compare(first=0, num_calls=96, optimize="-O1") == []


def test_what_is_missing_is_named(monkeypatch, capfd):
    monkeypatch.setattr(fuzz_aarch64, "EMULATOR", ["qemu-of-another-name"])
    monkeypatch.setattr("sys.argv", ["fuzz_aarch64.py"])
    assert fuzz_aarch64.main() == 2
    assert "qemu-of-another-name not found: apt-get install" in capfd.readouterr().err
