"""Serve a model with Ray Serve: single molecules arrive, wait a few milliseconds for others, and run as one batch.

    pip install "ray[serve]"
    python examples/serve_schnet.py                  # a server on this machine, 64 clients, a killed replica
    python examples/serve_schnet.py --data           # the same predictor maps a dataset over several workers

The script prints the throughput of gathered requests and of single requests, the 99th percentile of the time of a
request, the answers to an oversized and a malformed request, and the number of requests lost after a replica was
killed: none, because a client repeats a request if the server reports that it could not answer.
"""

import argparse
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import ray
import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse
from torch_geometric.data import Data

import popgeo
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.nn import PrecomputeInteractionGraph, SchNet

CUTOFF, MOST_ATOMS, TRIES = 5.0, 100, 20
SHAPES = [FixedSizeOptions(32, 600, 2), FixedSizeOptions(512, 6400, 33), FixedSizeOptions(1600, 20000, 65)]


def make_predictor() -> popgeo.Predictor:
    """Return a predictor of energies and forces. A real server would load a checkpoint or an exported file."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    predictor = popgeo.Predictor(SchNet(64, 64, 3, num_gaussians=32, cutoff=CUTOFF), SHAPES, forces=True)
    for count in (1, 12, 60):  # compiles each shape before the first request
        predictor([to_graph({"z": [6] * 20, "pos": np.random.default_rng(0).normal(size=(20, 3)).tolist()})] * count)
    return predictor


def to_graph(molecule: dict[str, Any]) -> Data:
    """Convert a request to a graph with its pairs of atoms.

    Raises:
        ValueError: the request is malformed, or the molecule is too large.
    """
    z, pos = torch.tensor(molecule["z"]), torch.tensor(molecule["pos"], dtype=torch.float32)
    if z.dtype != torch.int64 or pos.shape != (len(z), 3):
        raise ValueError(
            f"z is {list(z.shape)} {z.dtype}, pos {list(pos.shape)}; "
            "pass whole numbers as z, and three numbers per atom as pos."
        )
    if len(z) > MOST_ATOMS:
        raise ValueError(f"The molecule has {len(z)} atoms; at most {MOST_ATOMS} are allowed.")
    return PrecomputeInteractionGraph(CUTOFF)(Data(z=z, pos=pos))


@serve.deployment(max_ongoing_requests=256, health_check_period_s=1)
class Potential:
    """A deployment that gathers requests and predicts for them together."""

    def __init__(self, most: int) -> None:
        self.predictor = make_predictor()
        self.gather.set_max_batch_size(most)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.003)
    async def gather(self, graphs: list[Data]) -> list[Any]:
        """Return the result of each graph, or its error."""
        found = self.predictor(graphs, errors="keep")
        return [found.errors.get(i) or found.of(i) for i in range(len(graphs))]

    async def __call__(self, request: Request) -> Any:
        try:
            answer = await self.gather(to_graph(await request.json()))
            if isinstance(answer, Exception):
                raise answer
        except (ValueError, KeyError, TypeError) as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        return {name: value.tolist() for name, value in answer.items()} | {"process": os.getpid()}


class Mapped:
    """A worker of `ray.data` that maps rows of molecules to rows with energies."""

    def __init__(self) -> None:
        self.predictor = make_predictor()

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        graphs = [to_graph({"z": z, "pos": pos.reshape(-1, 3)}) for z, pos in zip(rows["z"], rows["pos"], strict=True)]
        return {"number": rows["number"], "energy": self.predictor(graphs)["energy"].flatten().numpy()}


def ask(url: str, molecule: Any) -> tuple[int, Any, float]:
    """Send a request, again after a server error; return status, answer and seconds."""
    start = time.perf_counter()
    body = json.dumps(molecule).encode()
    for _ in range(TRIES):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
                return answer.status, json.load(answer), time.perf_counter() - start
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return error.code, json.load(error), time.perf_counter() - start
        except OSError:
            pass
        time.sleep(0.2)
    return 0, None, time.perf_counter() - start


def throughput(url: str, molecules: list[Any], clients: int) -> tuple[float, float, list[Any]]:
    """Return requests per second, the 99th percentile of a request's time (s), and the answers."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda one: ask(url, one), molecules))
    return len(answers) / (time.perf_counter() - start), float(np.quantile([a[2] for a in answers], 0.99)), answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--data", action="store_true", help="map a dataset with ray.data instead")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=max(4, options.replicas), include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        map_dataset(options) if options.data else serve_and_ask(options)
    finally:
        serve.shutdown()
        ray.shutdown()


def map_dataset(options: argparse.Namespace) -> None:
    """Predict for a dataset with several workers, and compare with one process."""
    rows = [
        {"number": i, "z": one.z.numpy(), "pos": one.pos.flatten().numpy()}
        for i, one in enumerate(Molecules()[: options.requests])
    ]
    mapped = ray.data.from_items(rows).map_batches(Mapped, batch_size=256, concurrency=options.replicas)
    energies = {row["number"]: row["energy"] for row in mapped.iter_rows()}
    graphs = [to_graph({"z": row["z"], "pos": row["pos"].reshape(-1, 3)}) for row in rows]
    expected = make_predictor()(graphs)["energy"].flatten()
    off = max(abs(float(expected[i]) - energies[i]) for i in range(len(rows)))
    print(f"ray.data: {len(energies)} molecules by {options.replicas} workers; largest difference {off:.0e}")


def serve_and_ask(options: argparse.Namespace) -> None:
    """Serve on this machine, and send requests from many clients."""
    chosen = Molecules()[: min(options.requests, 500)]
    some = [{"z": one.z.tolist(), "pos": one.pos.tolist()} for one in chosen]
    molecules = [some[i % len(some)] for i in range(options.requests)]
    serve.start(http_options={"host": "127.0.0.1", "port": 8765})
    gathered, alone = (f"http://127.0.0.1:8765/{name}" for name in ("gathered", "alone"))
    deployment: Any = Potential
    replicated = deployment.options(num_replicas=options.replicas)
    serve.run(replicated.bind(1), name="alone", route_prefix="/alone")
    throughput(alone, molecules[:64], options.clients)
    few, _, _ = throughput(alone, molecules[: max(100, options.requests // 5)], options.clients)
    serve.delete("alone")
    serve.run(replicated.bind(64), name="gathered", route_prefix="/gathered")
    throughput(gathered, molecules[:64], options.clients)
    many, late, _ = throughput(gathered, molecules, options.clients)
    print(f"{options.clients} clients: {many:,.0f} requests/s gathered, {few:,.0f} one by one: {many / few:.1f}x")
    print(f"99th percentile of a gathered request: {1e3 * late:.0f} ms")
    broken, huge = {"z": [6, 1.5], "pos": [[0, 0, 0]]}, {"z": [1] * 500, "pos": [[i, 0, 0] for i in range(500)]}
    foreign = {"z": [300, 1], "pos": [[0, 0, 0], [0, 0, 1.0]]}
    mixed = [broken, *some[:40], huge, *some[40:80], foreign]
    for what, (status, answer, _) in zip(("broken", "oversized", "no element"), _wrong(gathered, mixed), strict=True):
        print(f"{what}: {status} {answer['error']}")
    victim = ask(gathered, some[0])[1]["process"]
    threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
    _, late, answers = throughput(gathered, molecules, options.clients)
    lost = sum(status != 200 for status, _, _ in answers)
    print(f"a replica was killed: {lost} of {len(answers)} requests lost; 99th percentile {1e3 * late:.0f} ms")


def _wrong(url: str, requests: list[Any]) -> list[Any]:
    """Send requests together, and return the answers that are errors."""
    answers = throughput(url, requests, len(requests))[2]
    return [answer for answer in answers if answer[0] != 200]


if __name__ == "__main__":
    run(main)
