"""A graph convolution in plain JAX on packed molecules: jax.jit traces the training step once.

    python examples/jax_gcn.py --epochs 5
    python examples/jax_gcn.py --ordinary      # PyG's batches of varying size, for comparison

The loader returns dictionaries of NumPy arrays, in memory that JAX reads without a copy; only the dataset uses torch.
The network predicts the HOMO-LUMO gap (eV) of each molecule from its atoms and bonds.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch_geometric.loader import DataLoader

from popgeo.command_line import run
from popgeo.data import FixedSizeOptions, to_graphs_tuple
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader

GAP = Molecules.target_index("gap")
Weights = dict[str, Any]


def make_weights(in_channels: int, channels: int, blocks: int, seed: int = 0) -> Weights:
    """Draw weights with a variance of 1 / width."""
    draw = np.random.default_rng(seed)
    widths = [(in_channels, channels), *[(channels, channels)] * (2 * blocks), (channels, 1)]
    return {
        f"w{i}": (draw.standard_normal(width) / np.sqrt(width[0])).astype(np.float32) for i, width in enumerate(widths)
    }


def make_step(blocks: int, learning_rate: float) -> tuple[Any, list[int]]:
    """Return a training step (Adam) for jax.jit, and a list with one entry per trace."""
    import jax
    import jax.numpy as jnp

    traces: list[int] = []

    def loss_of(weights: Weights, graphs: Any, mean: float) -> Any:
        num_nodes = graphs.nodes["x"].shape[0]
        degree = jax.ops.segment_sum(jnp.ones_like(graphs.receivers, dtype=jnp.float32), graphs.receivers, num_nodes)
        h = graphs.nodes["x"] @ weights["w0"]  # [num_nodes, channels]
        for block in range(blocks):
            sent = (h @ weights[f"w{2 * block + 1}"])[graphs.senders]  # [num_edges, channels]
            received = jax.ops.segment_sum(sent, graphs.receivers, num_nodes) / jnp.maximum(degree, 1)[:, None]
            h = h + jax.nn.relu(received + h @ weights[f"w{2 * block + 2}"])
        num_graphs = graphs.n_node.shape[0]
        total = jax.ops.segment_sum(h @ weights[f"w{2 * blocks + 1}"], graphs.nodes["batch"], num_graphs)
        gap = mean + total[:, 0] / jnp.maximum(graphs.n_node, 1)
        real = graphs.globals["graphs_mask"]
        error = jnp.where(real, jnp.abs(gap - graphs.globals["y"][:, GAP]), 0)  # padding has no weight
        return error.sum() / real.sum()

    def step(weights: Weights, moments: Any, number: Any, graphs: Any, mean: float) -> tuple[Weights, Any, Any]:
        traces.append(1)  # runs only when JAX traces the step, not in the compiled step
        loss, gradients = jax.value_and_grad(loss_of)(weights, graphs, mean)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
        rate = learning_rate * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
        return weights, (first, second), loss

    return jax.jit(step), traces


def ordinary(molecules: Molecules, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield PyG's batches of varying size as arrays."""
    for batch in DataLoader(molecules, batch_size, shuffle=True):
        arrays = {name: batch[name].numpy() for name in ("x", "edge_index", "batch", "ptr", "y")}
        yield {**arrays, "graphs_mask": np.ones(batch.num_graphs, dtype=bool)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=4000, help="number of bundled molecules")
    parser.add_argument("--batch-size", type=int, default=32, help="mean number of molecules per batch")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--ordinary", action="store_true", help="use PyG's batches of varying size")
    arguments = parser.parse_args()
    try:
        import jax
    except ImportError:
        print("jax_gcn.py: JAX is not installed: pip install jax")
        return 1
    molecules = Molecules()[: arguments.molecules]
    sizes = FixedSizeOptions.tune(molecules, target_graphs=arguments.batch_size)
    loader = FixedSizeDataLoader(
        molecules, shuffle=True, fixed_size_options=sizes, fixed_size_strategy="Window", output="numpy"
    )
    levels = {"x": "node", "y": "graph"}
    mean = float(np.mean([data.y[0, GAP] for data in molecules]))
    weights = make_weights(molecules.num_features, arguments.channels, blocks := 3)
    moments = tuple(jax.tree.map(np.zeros_like, weights) for _ in range(2))
    step, traces = make_step(blocks, learning_rate=2e-3)
    number = 0
    for epoch in range(1, arguments.epochs + 1):
        start, losses = time.monotonic(), []
        for batch in ordinary(molecules, arguments.batch_size) if arguments.ordinary else loader:
            number += 1
            wanted = {name: batch[name] for name in ("x", "edge_index", "batch", "ptr", "y", "graphs_mask")}
            graphs = to_graphs_tuple(wanted, levels)
            weights, moments, loss = step(weights, moments, np.float32(number), graphs, mean)
            losses.append(loss)
        seconds = time.monotonic() - start
        print(
            f"epoch {epoch}: loss {np.mean(losses):.3f} eV, {seconds:.1f} s, traced so far: {len(traces)}", flush=True
        )
    return 0


if __name__ == "__main__":
    run(main)
