"""The kit finds the errors of a loader, a sampler or a neighbor list, and reports nothing for right ones."""

import importlib.util
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FixedSizeOptions
from popgeo.loader import FixedSizeBatchSampler, FixedSizeDataLoader
from popgeo.testing import BrokenError, Case, NotTriedError, check_conformance
from popgeo.testing.claims import Subject
from popgeo.testing.conformance import known_claims, subject_of
from popgeo.testing.loader_subject import planted_graphs
from tests.support import planted_loaders, planted_neighbors

SIZES = FixedSizeOptions(num_nodes=41, num_edges=130, num_graphs=9)
MANY_WORKERS = {"once from workers", "new random numbers"}  # two processes each


def failing(subject: Subject, names: list[str]) -> list[str]:
    """Return the failing claims among these, without a search for the smallest case."""
    failed = []
    for name in names:
        claim = known_claims(subject.kind)[name]
        for settings in claim.settings:
            try:
                claim.check(subject, Case(graphs=subject.graphs, settings=settings))
            except NotTriedError:
                continue
            except Exception:
                failed.append(name)
                break
    return failed


def claims_of(subject: Subject, without: set[str] = MANY_WORKERS) -> list[str]:
    return [name for name in known_claims(subject.kind) if name not in without]


WRONG = {**planted_loaders.WRONG, **planted_loaders.HELD_OUT}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loader_is_found_by_the_claim_meant_for_it(name: str):
    make, meant, _ = WRONG[name]
    assert failing(subject_of(make, kind="loader"), [meant]) == [meant]


SAMPLERS = {name: wrong for name, wrong in WRONG.items() if "batches" in getattr(wrong[0], "keywords", {})}


@pytest.mark.parametrize("name", [name for name, wrong in SAMPLERS.items() if wrong[1] != "one shape"])
def test_a_wrong_sampler_is_found_without_its_loader(name: str):
    make, meant, _ = WRONG[name]
    assert failing(subject_of(make.keywords["batches"], kind="sampler"), [meant]) == [meant]


def of_popgeo(**choices: Any) -> Any:
    def make(graphs: Any, seed: int = 0, rank: int = 0, world_size: int = 1, num_workers: int = 0) -> Any:
        more = {"num_workers": num_workers, "rank": rank, "world_size": world_size, "seed": seed}
        return FixedSizeDataLoader(graphs, shuffle=True, **{"fixed_size_options": SIZES, **choices}, **more)

    return make


def sampler_of_popgeo(graphs: Any, seed: int = 0, rank: int = 0, world_size: int = 1) -> Any:
    nodes, edges = [graph.num_nodes for graph in graphs], [graph.num_edges for graph in graphs]
    more = {"rank": rank, "world_size": world_size, "seed": seed}
    return FixedSizeBatchSampler(nodes, edges, fixed_size_options=SIZES, **more)


RIGHT_LOADERS = {
    **planted_loaders.RIGHT,
    "popgeo, stream": of_popgeo(fixed_size_strategy="StreamPack"),
    "popgeo, window": of_popgeo(fixed_size_strategy="Window"),
    "popgeo, skip": of_popgeo(fixed_size_strategy="StreamPack", over_size_strategy="Skip"),
    "popgeo, measured": of_popgeo(fixed_size_options=None, batch_size=4),
    "popgeo, sorted edges": of_popgeo(fixed_size_strategy="StreamPack", sort_edges=True),
    "popgeo, spread padding": of_popgeo(fixed_size_strategy="StreamPack", spread_padding_edges=True),
    "popgeo, background": of_popgeo(fixed_size_strategy="StreamPack", background=True),
}


@pytest.mark.parametrize("name", RIGHT_LOADERS)
def test_nothing_is_found_in_a_right_loader(name: str):
    subject = subject_of(RIGHT_LOADERS[name], kind="loader")
    assert failing(subject, claims_of(subject)) == []


@pytest.mark.filterwarnings("ignore:DrawnGraphs does not hold its graphs")
@pytest.mark.parametrize("make", [of_popgeo(fixed_size_strategy="StreamPack")])
def test_nothing_is_found_in_workers_of_a_right_loader(make: Any):
    assert failing(subject_of(make, kind="loader"), [*MANY_WORKERS]) == []


@pytest.mark.parametrize("make", [*planted_loaders.RIGHT_SAMPLERS.values(), sampler_of_popgeo])
def test_nothing_is_found_in_a_right_sampler(make: Any):
    subject = subject_of(make, kind="sampler")
    assert failing(subject, claims_of(subject)) == []


LISTS = {**planted_neighbors.WRONG, **planted_neighbors.HELD_OUT}


@pytest.mark.parametrize("name", LISTS)
def test_a_wrong_list_of_neighbors_is_found_by_the_claim_meant_for_it(name: str):
    find, meant, _ = LISTS[name]
    assert failing(subject_of(find, kind="neighbor list"), [meant]) == [meant]


@pytest.mark.parametrize("name", [*planted_neighbors.RIGHT, *planted_neighbors.OTHERS])
def test_nothing_is_found_in_a_right_list_of_neighbors(name: str):
    package, find = planted_neighbors.OTHERS.get(name) or ("numpy", planted_neighbors.RIGHT[name])
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    subject = subject_of(find, kind="neighbor list")
    assert failing(subject, claims_of(subject)) == []


def test_the_smallest_case_of_a_loader_comes_as_a_script_that_shows_it(capsys: pytest.CaptureFixture[str]):
    found = check_conformance(
        "tests.support.planted_loaders:sorts_edges", kind="loader", claims=["edge features by id"]
    )
    (finding,) = found.findings
    assert len(finding.case.graphs) == 1
    assert finding.case.graphs[0].num_edges == 2
    assert "9566" in finding.cause
    exec(finding.script, {})  # like a user who pastes it
    shown = capsys.readouterr().out
    assert "FAILED" in shown
    assert finding.words in shown


def test_the_smallest_case_of_a_list_has_two_atoms():
    find = planted_neighbors.WRONG["bins"][0]
    (finding,) = check_conformance(find, kind="neighbor list", claims=["complete"]).findings
    assert [graph.num_nodes for graph in finding.case.graphs] == [2]


def test_sizes_of_ones_own_are_planted():
    graphs = [Data(x=torch.ones(n, 5), edge_index=torch.zeros(2, n, dtype=torch.int64)) for n in (3, 8)]
    subject = subject_of(planted_loaders.make, graphs, kind="loader")
    assert [graph.num_nodes for graph in subject.graphs] == [3, 8]
    assert subject.graphs[1].y.tolist() == [[2.0]]


def test_what_cannot_be_tried_is_asked_for():
    with pytest.raises(ValueError, match="a function that makes it from a list of graphs"):
        check_conformance(planted_loaders.make(planted_graphs()), kind="loader")
    with pytest.raises(ValueError, match="without y, which numbers the planted graphs"):
        check_conformance(lambda graphs: [{"x": graph.x} for graph in graphs], kind="loader")
    with pytest.raises(ValueError, match="a function that returns i, j, S"):
        check_conformance(lambda *given: None, kind="neighbor list")


def test_a_loader_of_batches_of_its_own_kind_is_read_by_what_its_user_says():
    class Box:
        def __init__(self, graph: Data) -> None:
            self.held = graph

    found = check_conformance(
        lambda graphs: [Box(graph) for graph in graphs], kind="loader", read=lambda box: {"y": box.held.y}
    )
    assert found.failed == ()
    assert found.finding("graphs come whole").words == "batches have no x"


def test_a_loader_that_never_ends_is_told():
    def endless(graphs: Any) -> Any:
        while True:
            yield graphs[0]

    subject = subject_of(endless, kind="loader")
    with pytest.raises(BrokenError, match="continues after"):
        subject.epoch(subject.make(subject.graphs), Case(graphs=subject.graphs))
