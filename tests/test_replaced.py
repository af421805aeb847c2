"""An attribute of another library's object is replaced during a block and restored afterwards."""

from types import SimpleNamespace

import pytest

from popgeo.replaced import replaced


class Base:
    size = 1


class Derived(Base):
    pass


def test_the_old_value_is_back_also_after_an_error():
    holder = SimpleNamespace(size=1)
    with pytest.raises(KeyError), replaced(holder, "size", 2):
        _ = {1: 1}[holder.size]
    assert holder.size == 1


@pytest.mark.parametrize("name", ["size", "color"])
def test_what_is_inherited_or_missing_is_taken_away_again(name: str):
    with replaced(Derived, name, 2):
        assert getattr(Derived, name) == 2
    assert name not in vars(Derived)
