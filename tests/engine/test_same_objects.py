"""One call sees each change of the objects in many dictionaries, and of the classes of objects."""

import pytest
import torch

from popgeo.engine.same_objects import same_tables


class First:
    """A class of objects."""


class Second:
    """Another class of objects with the same layout."""


def state():
    weights = [torch.ones(2) for _ in range(3)]
    tables = [{weight: [number] for number, weight in enumerate(weights)}, {}, {"eps": 1e-8, "betas": (0.9, 0.99)}]
    options = {"mode": True, "none": None, "count": 1}
    thing = First()
    return tables, options, thing


CHANGES = {
    "a value": lambda tables, options, thing: tables[2].update(eps=float("1e-8")),
    "a tensor": lambda tables, options, thing: tables[2].update(betas=torch.ones(1)),
    "a key": lambda tables, options, thing: tables[1].update(new=1),
    "a key in place of a tensor": lambda tables, options, thing: tables[0].update(
        {torch.ones(2): tables[0].popitem()[1]}
    ),
    "a missing key": lambda tables, options, thing: tables[0].popitem(),
    "the order": lambda tables, options, thing: tables[2].update(eps=tables[2].pop("eps")),
    "an option": lambda tables, options, thing: options.update(mode=False),
    "an option that was missing": lambda tables, options, thing: options.update(missing=0),
    "an option that is missing": lambda tables, options, thing: options.pop("mode"),
    "a class": lambda tables, options, thing: setattr(thing, "__class__", Second),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen(native, change):
    tables, options, thing = state()
    is_same = same_tables(tables, [(options, key) for key in ("mode", "none", "missing")], [First(), thing])
    options["count"], options["more"] = 2, 3
    assert is_same()
    CHANGES[change](tables, options, thing)
    assert not is_same()
    assert not is_same()


def test_no_tables_are_always_the_same(native):
    assert same_tables([])()
