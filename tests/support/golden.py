"""Write the results of every contract model and of the loaders to files, to detect changes by a refactoring.

    python -m tests.support.golden FOLDER

Run it before and after a change that should change no result, and compare the two folders with `diff -r`. For each
model it writes the captured graph and update, a hash of the kept step's bytes, the program's listing with a hash of its
steps, and the report as JSON and text; for each loader, a hash of every tensor of every batch. Source lines appear
without path and number, and wall times are left out, so that moved files compare equal.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from popgeo.capture import serialize
from popgeo.data import FixedSizeOptions
from popgeo.ipu import CompiledStep, TileExact, training_model
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from tests.contracts.test_models import MODELS, Training, make_batch, make_model, pad
from tests.contracts.test_tiles import SMALL
from tests.support.graphs import graph, hetero_graph
from tests.support.training_steps import MODELS as NETWORKS
from tests.support.training_steps import graph_network, schnet

_PLACE = re.compile(r"[^\s\"]*\.py:\d+ in ")


def golden(folder: Path) -> None:
    """Write one file per result that must stay equal."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tqdm(_stories(), desc="writing down", disable=None):
        (folder / re.sub(r"[^\w.]+", "-", name)).write_text(_PLACE.sub("in ", text) + "\n")


def _stories() -> Iterator[tuple[str, str]]:
    for name in MODELS:
        yield from _of_contract(name)
    steps = {"training schnet": schnet, **{f"training {name}": lambda n=name: graph_network(n) for name in NETWORKS}}
    for name, make in steps.items():
        torch.manual_seed(0)
        model, inputs = make()
        step = training_model(model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3)).compile(*inputs)
        yield from _of_step(name, step)
    yield "batches", "\n".join(_batches())


def _of_contract(name: str) -> Iterator[tuple[str, str]]:
    batch = vars(pad(make_batch((3, 1)), nodes=2, edges=3, graphs=1))
    model = Training(make_model(name), batch["num_graphs"])
    tensors = {key: value for key, value in batch.items() if isinstance(value, Tensor)}
    step = training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1)).compile(tensors)
    yield from _of_step(name, step)
    exact = TileExact(step, SMALL)
    exact(tensors)
    yield f"{name}.program", f"{exact.program}\n{_contents(exact.program)}"
    weights = torch.cat([exact.state_dict()[key].flatten() for key, _ in model.named_parameters()])
    yield f"{name}.trained", f"{_hash([weights])} {weights.abs().sum():.12g}"


def _of_step(name: str, step: CompiledStep) -> Iterator[tuple[str, str]]:
    yield f"{name}.graph", f"{step.graph}\n\n{step.update.capture()}"
    places = "\n".join(f"{op.phase} {op.module} {op.source}" for op in step.graph.ops)
    yield f"{name}.places", places
    kept = step.captured
    plain = tuple(replace(op, source=_PLACE.sub("in ", op.source)) for op in kept.graph.ops)
    step_bytes = serialize.to_bytes(replace(kept, graph=replace(kept.graph, ops=plain)))
    yield f"{name}.kept", _hash([step_bytes])
    report = replace(step.report, compile_seconds=0.0).for_batch(graphs=3)
    yield f"{name}.report.json", json.dumps(json.loads(report.to_json()), indent=1)
    yield f"{name}.report.txt", str(report)
    for rows in ("ops", "supersteps", "modules", "blocks", "families"):
        yield f"{name}.report.{rows}.csv", report.to_frame(rows).to_csv()


def _contents(program: Program) -> str:
    """Return a hash of every place, transfer and vertex of a program."""
    parts: list[Any] = []
    for variable in program.variables.values():
        mapping = variable.mapping
        parts += [variable.name, str(variable.dtype), variable.lasting, mapping.starts, mapping.tiles, mapping.numel]
    for step in program.walk():
        if isinstance(step, Exchange):
            for t in step.transfers:
                parts += [t.variable, t.source, t.destination, t.elements]
        elif isinstance(step, ComputeSet):
            for v in step.vertices:
                parts += [v.tile, v.operation, str(v.arguments), str(v.keywords)]
                for region in (*v.reads, *v.writes):
                    parts += ["none"] if region is None else [region.variable, region.elements]
    return _hash(parts)


def _batches() -> Iterator[str]:
    random = np.random.default_rng(0)
    plain = [graph(int(n), int(3 * n % 11), seed) for seed, n in enumerate(random.integers(1, 9, 60))]
    mixed = [hetero_graph(*map(int, random.integers(1, 5, 4)), seed=seed) for seed in range(40)]
    for dataset, kind in ((plain, "plain"), (mixed, "hetero")):
        for strategy in FixedSizeStrategy:
            for choices in ({}, {"sort_edges": True, "index_dtype": torch.int32}, {"options": 3}):
                loader = FixedSizeDataLoader(
                    dataset,
                    shuffle=True,
                    fixed_size_options=FixedSizeOptions.from_dataset(dataset, 9),
                    fixed_size_strategy=strategy,
                    seed=5,
                    **choices,
                )
                for epoch in range(2):
                    hashes = [_hash(_flat(batch)) for batch in loader]
                    yield f"{kind} {strategy.name} {choices} epoch {epoch}: {len(hashes)} {_hash(hashes)}"


def _flat(batch: Any) -> Iterator[Any]:
    for store in batch.stores:
        for key, value in store.items():
            yield f"{store._key} {key}"
            yield value if isinstance(value, Tensor) else repr(value)


def _hash(parts: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            part = part.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        if isinstance(part, np.ndarray):
            part = part.tobytes()
        digest.update(part if isinstance(part, bytes) else str(part).encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the files")
    golden(parser.parse_args().folder)
