"""The main job: train SchNet on molecules through the simulated IPU, show how it went, save it."""

import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import QM9
from tqdm.auto import tqdm

from popgeo import ipu, plots
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.nn import KNNInteractionGraph, SchNet, l1_loss
from popgeo.settings import Settings, make_folder, parse

MEV = 1000.0  # meV in an eV
GAP = {"molecules": Molecules.target_index("gap"), "qm9": 4}  # the column of y that holds the HOMO-LUMO gap, in eV
UNUSED = ("x", "edge_index", "edge_attr", "smiles", "name", "idx")  # SchNet reads z and pos; the rest stays at home
HELD_OUT = 0.1  # share of the molecules kept for validation, and again for the test


class GapModel(torch.nn.Module):
    """SchNet and the loss it is trained on: `(prediction, loss)`, both in eV, as the executor wants them."""

    def __init__(self, schnet: SchNet, num_graphs: int) -> None:
        super().__init__()
        self.schnet = schnet
        self.num_graphs = num_graphs

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, gap: Tensor, graphs_mask: Tensor) -> tuple[Tensor, Tensor]:
        prediction = self.schnet(z, pos, batch, num_graphs=self.num_graphs).flatten()  # [num_graphs]
        return prediction, l1_loss(prediction, gap, graphs_mask)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the main job; the exit status is 2 where a setting cannot work."""
    settings = parse(arguments)
    try:
        make_folder(settings.out)
        dataset = load(settings)
    except ValueError as error:
        print(f"popgeo: {error}", file=sys.stderr)
        return 2
    run(settings, dataset)
    return 0


def run(settings: Settings, dataset: InMemoryDataset) -> None:
    """Trains, validates after each epoch, tests once; prints what happened and writes it to `settings.out`."""
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    store = FlatStore.from_dataset(dataset, exclude_keys=UNUSED)
    ids = split(len(store), settings.limit, settings.seed)
    gap = dataset.y[:, GAP[settings.dataset]].float()
    mean, std = gap[ids["training"]].mean().item(), gap[ids["training"]].std().item()
    print("molecules: " + ", ".join(f"{len(of):,} for {name}" for name, of in ids.items()))

    sizes = FixedSizeOptions.tune(store.view(ids["training"]), target_graphs=settings.batch_size)
    options = ipu.Options(device_iterations=settings.device_iterations, output_mode="all")
    loaders = {
        name: FixedSizeDataLoader(
            store.view(of),
            shuffle=name == "training",
            fixed_size_options=sizes,
            fixed_size_strategy=FixedSizeStrategy.Window if name == "training" else FixedSizeStrategy.StreamPack,
            options=options,
            seed=settings.seed,
        )
        for name, of in ids.items()
    }
    schnet = make_schnet(settings, mean, std, max_num_nodes=int(store.sizes[:, 0].max()))
    model = GapModel(schnet, sizes.num_graphs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    training, inference = ipu.training_model(model, options, optimizer), ipu.inference_model(model, options)
    print(f"batches: {loaders['training']}\nmodel: SchNet, {sum(w.numel() for w in model.parameters()):,} weights")

    history = []
    for epoch in range(1, settings.epochs + 1):
        progress = tqdm(loaders["training"], desc=f"epoch {epoch}/{settings.epochs}", unit="call")
        start = time.perf_counter()
        train_mae, num_graphs = train_epoch(training, progress, GAP[settings.dataset])
        graphs_per_second = num_graphs / (time.perf_counter() - start)
        schedule.step()
        training.set_optimizer(optimizer)
        validation = predict(inference, loaders["validation"], GAP[settings.dataset])
        history.append((epoch, MEV * train_mae, MEV * mae(validation), graphs_per_second))
    metrics = pd.DataFrame(history, columns=["epoch", "train_mae", "validation_mae", "graphs_per_second"])
    metrics["mean_predictor_mae"] = MEV * float((validation["gap"] - mean).abs().mean())
    test = predict(inference, loaders["test"], GAP[settings.dataset])

    print("\nmean absolute errors in meV; mean_predictor_mae: always predicting the mean, on the validation molecules")
    print(metrics.to_string(index=False, float_format="{:,.0f}".format))
    print(f"\ntest: {MEV * mae(test):,.0f} meV on {len(test):,} molecules that nothing was chosen on")
    full = fill(loaders["training"], schnet, sizes.total_num_nodes)
    print("full: " + ", ".join(f"{share:.1%} of {what}" for what, share in full.items()))
    print(f"\n{training.report}\n")
    save(settings.out, metrics, test, str(training.report), schnet)


def split(num_molecules: int, limit: int | None, seed: int) -> dict[str, np.ndarray]:
    """Which molecules, `limit` of them, are for training, validation and test, drawn at random."""
    order = torch.randperm(num_molecules, generator=torch.Generator().manual_seed(seed)).numpy()[:limit]
    held_out = round(HELD_OUT * len(order))
    validation, test, training = np.split(order, [held_out, 2 * held_out])
    return {"training": training, "validation": validation, "test": test}


def make_schnet(settings: Settings, mean: float, std: float, max_num_nodes: int) -> SchNet:
    """The model; its outputs start around the mean of the targets, on their scale (eV)."""
    return SchNet(
        hidden_channels=settings.hidden_channels,
        num_filters=settings.hidden_channels,
        num_interactions=settings.num_interactions,
        num_gaussians=32,
        cutoff=settings.cutoff,
        interaction_graph=KNNInteractionGraph(settings.num_neighbors, settings.cutoff, max_num_nodes),
        readout="mean",  # the gap does not grow with the molecule
        mean=mean,
        std=std,
    )


def train_epoch(training: ipu.CompiledModel, batches: tqdm, column: int) -> tuple[float, int]:
    """One pass over the training molecules: their mean absolute error while training (eV), and how many they are."""
    error, num_graphs = 0.0, 0
    for batch in batches:
        _, loss = training(batch.z, batch.pos, batch.batch, batch.y[:, column], batch.graphs_mask)
        real = batch.graphs_mask.view(len(loss), -1).sum(1)  # [mini-batches]
        error += (loss * real).sum().item()
        num_graphs += int(real.sum())
        batches.set_postfix_str(f"loss {MEV * error / num_graphs:.0f} meV")
    return error / num_graphs, num_graphs


def predict(inference: ipu.CompiledModel, batches: FixedSizeDataLoader, column: int) -> pd.DataFrame:
    """The gap of each real molecule, computed and predicted (eV)."""
    gaps, predictions = [], []
    for batch in batches:
        gap = batch.y[:, column]
        prediction, _ = inference(batch.z, batch.pos, batch.batch, gap, batch.graphs_mask)
        gaps.append(gap[batch.graphs_mask])
        predictions.append(prediction[batch.graphs_mask])
    return pd.DataFrame({"gap": torch.cat(gaps).numpy(), "prediction": torch.cat(predictions).numpy()})


def fill(batches: FixedSizeDataLoader, schnet: SchNet, num_nodes: int) -> dict[str, float]:
    """The share of slots that are real: nodes and graphs of the batches, edges of the interaction graph."""
    shares = []
    for batch in islice(batches, 10):
        parts = (t.split(num_nodes) for t in (batch.pos, batch.batch, batch.nodes_mask))
        edges = [
            schnet.interaction_graph(p, of, nodes_mask=m)[1] < schnet.cutoff for p, of, m in zip(*parts, strict=True)
        ]
        masks = (batch.nodes_mask, torch.cat(edges), batch.graphs_mask)
        shares.append([mask.float().mean().item() for mask in masks])
    return dict(zip(("nodes", "edges", "graphs"), torch.tensor(shares).mean(0).tolist(), strict=True))


def mae(predicted: pd.DataFrame) -> float:
    """Mean absolute error (eV)."""
    return float((predicted["prediction"] - predicted["gap"]).abs().mean())


def save(folder: Path, metrics: pd.DataFrame, test: pd.DataFrame, report: str, schnet: SchNet) -> None:
    """Writes the pictures, the figures, the report and the weights; each file appears whole or not at all."""
    curve = plots.loss_curve(metrics, mean_predictor=metrics["mean_predictor_mae"].iloc[-1])
    scatter = plots.prediction_scatter(test["gap"], test["prediction"])
    written: dict[str, Callable[[Path], object]] = {
        "loss.png": lambda path: draw(curve, path),
        "predictions.png": lambda path: draw(scatter, path),
        "metrics.csv": lambda path: metrics.to_csv(path, index=False),
        "report.txt": lambda path: path.write_text(report + "\n"),
        "weights.pt": lambda path: torch.save(schnet.state_dict(), path),
    }
    for name, write in written.items():
        partial = folder / f"{name}.part"
        write(partial)
        partial.replace(folder / name)
    print(f"wrote {', '.join(written)} to {folder}/")


def draw(axes: Axes, path: Path) -> None:
    """Writes the figure that holds the axes as PNG."""
    assert isinstance(axes.figure, Figure)
    axes.figure.savefig(path, format="png", dpi=150, bbox_inches="tight")


def load(settings: Settings) -> InMemoryDataset:
    """The molecules, with `z`, `pos` (angstrom) and the targets `y`.

    Raises:
        ValueError: QM9 was asked for, and its folder was not given, is absent, or cannot be read or filled by PyG.
    """
    if settings.dataset == "molecules":
        return Molecules()
    if settings.root is None or not settings.root.is_dir():
        raise ValueError(
            f"--root is {settings.root or 'missing'}; for --dataset qm9 name an existing folder: "
            "the root of PyTorch Geometric's QM9, or an empty one to download it into."
        )
    try:
        return QM9(str(settings.root))
    except OSError as error:
        raise ValueError(f"PyG can neither read nor download QM9 in --root {settings.root}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
