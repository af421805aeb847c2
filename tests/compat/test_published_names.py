"""Each public name of PopTorch and PopTorch Geometric imports from its module, or is left out with a reason."""

import csv
import importlib
import importlib.util
from pathlib import Path

import pytest

from popgeo import compat
from tests.support.old_names import take_names_back

# One row per module: its names, or names that are omitted on purpose, with the reason.
with Path(__file__).with_name("published_names.csv").open() as file:
    ROWS = list(csv.DictReader(file))
NAMES = [(row["module"], name) for row in ROWS if not row["left_out_because"] for name in row["names"].split()]
LEFT_OUT = [(row["module"], name) for row in ROWS if row["left_out_because"] for name in row["names"].split()]
DOCUMENTED = [("poptorch.options", f"_{kind}Options") for kind in ("Training", "Precision", "TensorLocation", "Jit")]
OLDER = [
    ("poptorch_geometric.batch_sampler", "FixedBatchSampler"), ("popdist.poptorch", "Options"),
    ("poptorch_geometric.batch_sampler", "make_fixed_batch_generator"), ("popdist", "isPopdistEnvSet"),
    ("popart", "SubgraphCopyingStrategy"), ("popart", "AccumulateOuterFragmentSchedule"),
    ("popart", "RecomputationType"), ("popart", "SyntheticDataMode"), ("popdist", "getInstanceIndex"),
    ("popdist", "execute_on_instances"), ("popart", "BatchSerializationBatchSchedule"), ("popart", "VirtualGraphMode"),
    ("poptorch._impl", "_restoreWrapperIfNecessary"), ("torch_cluster", "grid_cluster"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _old_names():
    compat.enable(shadow=True)
    yield
    take_names_back()


@pytest.mark.parametrize(("module", "name"), [*NAMES, *DOCUMENTED, *OLDER])
def test_a_name_imports_from_the_module_that_programs_import_it_from(module, name):
    namespace: dict[str, object] = {}
    exec(f"from {module} import {name}", namespace)
    assert namespace[name] is getattr(importlib.import_module(module), name)


def test_all_names_are_there_or_left_out_with_a_reason_and_none_is_both():
    assert len({*NAMES, *LEFT_OUT}) == len(NAMES) + len(LEFT_OUT) == 420
    for row in ROWS:
        found = importlib.util.find_spec(row["module"])
        there = [n for n in row["names"].split() if found and hasattr(importlib.import_module(row["module"]), n)]
        assert not (row["left_out_because"] and there), f"{there} of {row['module']} are there: take them off the list"


def test_a_star_gives_what_a_program_expects_of_it():
    namespace: dict[str, object] = {}
    exec("from poptorch import *", namespace)
    assert {"Options", "DataLoader", "trainingModel", "OutputMode", "for_loop"} <= {*namespace}


def test_a_name_that_poptorch_does_not_have_is_an_attribute_error():
    poptorch = importlib.import_module("poptorch")
    with pytest.raises(AttributeError, match=r"poptorch' has no attribute 'traningModel'"):
        _ = poptorch.traningModel
