"""Old names work until their announced end, with a warning that contains the new name."""

import re

import pytest

import popgeo
from popgeo.lazy_names import RENAMED


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_the_new_one_and_warns_until_its_end(old: str):
    new, end = RENAMED[old]
    module, _, name = old.rpartition(".")
    with pytest.warns(
        FutureWarning, match=re.escape(f"{old} is now {new}; the old name ends with popgeo {end}")
    ) as said:
        found = getattr(getattr(popgeo, module.rpartition(".")[2]), name)
    assert said[0].filename == __file__
    module, _, name = new.rpartition(".")
    assert found is getattr(getattr(popgeo, module.rpartition(".")[2]), name)
    now = tuple(map(int, popgeo.__version__.split(".")[:2]))
    assert now < tuple(map(int, end.split("."))), f"remove {old} from popgeo.lazy_names.RENAMED"
