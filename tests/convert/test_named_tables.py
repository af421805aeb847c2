"""Triples and events from files: every name keeps its number, and a file that is not as it should be is refused."""

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

from popgeo.convert import read_events, read_triples
from popgeo.loader import FixedSizeEventLoader


def test_triples_keep_the_vocabulary_of_training(tmp_path):
    (tmp_path / "train.tsv").write_text('NA\tborders\tZA\nZA\tborders\tNA\nZA\thas\t"007\n')
    with gzip.open(tmp_path / "test.tsv.gz", "wt") as file:
        file.write("ZA\thas\tNA\n")
    train = read_triples(tmp_path / "train.tsv")
    assert list(train.entities) == ['"007', "NA", "ZA"]
    assert train.triples.tolist() == [[1, 0, 2], [2, 0, 1], [2, 1, 0]]
    assert read_triples(tmp_path / "test.tsv.gz", like=train).triples.tolist() == [[2, 1, 1]]
    (tmp_path / "new.tsv").write_text("ZA\thas\tBW\n")
    with pytest.raises(ValueError, match="names 'BW', which the vocabulary does not have"):
        read_triples(tmp_path / "new.tsv", like=train)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b,c\n", "odd.tsv has 1 columns. Triples have a head, a relation and a tail"),
        (b"a\tb\n", "has 2 columns. Triples"),
        (b"a\tb\tc\na\tb\t\n", "has an empty name in line 2. Triples"),
        (b"Z\xfcrich\tin\tCH\n", "odd.tsv cannot be read: 'utf-8' codec"),
    ],
)
def test_lines_that_are_no_triples_are_refused(tmp_path, text, message):
    (tmp_path / "odd.tsv").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        read_triples(tmp_path / "odd.tsv")


def test_features_may_name_the_time_or_a_column_twice(tmp_path):
    (tmp_path / "events.csv").write_text("user,item,at,price\na,b,3,0.5\n")
    events = read_events(tmp_path / "events.csv", "user", "item", "at", ["price", "at", "price"])
    assert (events.data.t.tolist(), events.data.msg.tolist()) == ([3], [[0.5, 3.0, 0.5]])


EVENTS = "user,item,at,price\n7,7,3,0.5\n07,1,3,1.5\n7,1,9,2.5\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_events_are_read_with_their_names(tmp_path, kind):
    path = tmp_path / f"events.{kind}"
    path.with_suffix(".csv").write_text(EVENTS)
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[stores]'")
        import pandas as pd

        pd.read_csv(path.with_suffix(".csv"), dtype={"user": str, "item": str}).to_parquet(path)
    events = read_events(path, "user", "item", "at", ["price"])
    assert (list(events.sources), list(events.destinations)) == (["07", "7"], ["1", "7"])
    assert events.data.src.tolist() == [1, 0, 1]
    assert events.data.dst.tolist() == [3, 2, 2]
    assert events.data.msg.flatten().tolist() == [0.5, 1.5, 2.5]
    assert read_events(path, "user", "item", "at", bipartite=False).data.dst.tolist() == [2, 1, 1]
    (batch,) = FixedSizeEventLoader(events.data, batch_size=4, negatives=None)
    assert torch.equal(batch.t[batch.events_mask], events.data.t)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item,at\na,b,5\na,c,4\n", "Row 1 of .* is earlier than the one before. Pass sort=True"),
        ("user,item,at\na,,5\n", "lacks a value"),
        ("user,item,at\na,b,soon\n", "has no finite number, in column 'at', row 0"),
        ("user,item,at\na,b,1.5\n", "not exact whole numbers, such as 1.5"),
        ("user,item\na,b\n", r"no columns \['at'\]"),
        ("user,item,at\na,b,inf\n", "no finite number, in column 'at', row 0"),
        ("user,item,at\na,b,1e30\n", r"exact whole numbers, such as 1e\+30"),
        ("user,item,at\na,b,9007199254740993.0\n", "exact whole numbers, such as 9007199254740992.0"),
        ("user,item,at\na,b,18446744073709551615\n", "exact whole numbers, such as 18446744073709551615"),
        ("", "odd.csv cannot be read: No columns"),
        (
            "user,item,at,price\na,b,1,2,\nc,d,2,3,\n",
            r"odd.csv has more fields in a line than names of columns, \['user'",
        ),
        ("user,item,at\n1,a,b,1\n2,c,d,2\n", "odd.csv has more fields in a line"),
        ("user,item,at\na,b,1\na,b,1,2\n", "odd.csv cannot be read: .* Expected 3 fields in line 3, saw 4"),
    ],
)
def test_events_that_cannot_be_used_are_refused(tmp_path, text, message):
    (tmp_path / "odd.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_events(tmp_path / "odd.csv", "user", "item", "at")
    if "earlier" in message:
        assert read_events(tmp_path / "odd.csv", "user", "item", "at", sort=True).data.t.tolist() == [4, 5]


def events_of(monkeypatch: pytest.MonkeyPatch, times: pd.Series, **choices: bool) -> list[int]:
    table = pd.DataFrame({"user": "a", "item": "b", "at": times})
    monkeypatch.setattr(pd, "read_parquet", lambda path: table)
    return read_events("events.parquet", "user", "item", "at", **choices).data.t.tolist()


@pytest.mark.parametrize("kind", ["uint8", "uint32", "uint64", "int8", "int64", "float32", "float64", "Int8", "UInt32"])
def test_times_of_every_type_are_ordered_as_numbers(monkeypatch, kind):
    low = 0 if kind.lower().startswith("u") else -100
    assert events_of(monkeypatch, pd.Series([low, 5, 100], dtype=kind)) == [low, 5, 100]
    with pytest.raises(ValueError, match=r"Row 1 of .* is earlier than the one before"):
        events_of(monkeypatch, pd.Series([100, 5], dtype=kind))
    assert events_of(monkeypatch, pd.Series([100, low, 5], dtype=kind), sort=True) == [low, 5, 100]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (pd.to_datetime(["2020-01-01", None, "2021-01-01"]), "lacks a value, .* in column 'at', row 1"),
        (pd.to_datetime([None, "2020-01-01"]).tz_localize("UTC"), "in column 'at', row 0"),
        (pd.to_timedelta([1, None], unit="s"), "in column 'at', row 1"),
        (pd.array([1, None], dtype="Int64"), "in column 'at', row 1"),
        (np.array([1, 2**63], dtype=np.uint64), "such as 9223372036854775808"),
        (np.array([1, 2**24 + 2], dtype=np.float32), "not exact whole numbers, such as 16777218"),
        ([False, True], "is bool; times are whole numbers"),
    ],
)
def test_times_that_are_missing_or_not_exact_are_refused(monkeypatch, times, message):
    for sort in (False, True):
        with pytest.raises(ValueError, match=message):
            events_of(monkeypatch, pd.Series(times), sort=sort)


def test_dates_are_in_order_and_lines_are_not_lost(monkeypatch, tmp_path):
    first, second = events_of(monkeypatch, pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01"])))
    assert first < second
    (tmp_path / "odd.csv").write_text('user,item,at\na,"b,1\na,c,2\na,"d,3\n')
    with pytest.raises(ValueError, match="row 0, counted from 0: column 'item' has a field of several lines"):
        read_events(tmp_path / "odd.csv", "user", "item", "at")
    (tmp_path / "odd.csv").write_text("user,item,at,f\na,b,1,1e39\n")
    with pytest.raises(ValueError, match="no finite number, in column 'f', row 0"):
        read_events(tmp_path / "odd.csv", "user", "item", "at", ["f"])
