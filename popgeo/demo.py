"""`popgeo demo`: train SchNet on molecules on the simulated IPU, then print and save the results."""

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.datasets import QM9

from popgeo import __version__, command_line, command_parsers, ipu, plots
from popgeo.atomic_write import written_whole
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.datasets import Molecules
from popgeo.folder_lock import folder_lock
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.nn import KNNInteractionGraph, PrecomputeInteractionGraph, SchNet, l1_loss
from popgeo.plots.style import write_png
from popgeo.progress import bar, progress

MEV = 1000.0  # meV in an eV
GAP = {"molecules": Molecules.target_index("gap"), "qm9": 4}  # the column of y that holds the HOMO-LUMO gap, in eV
UNUSED = ("x", "edge_index", "edge_attr", "smiles", "name", "idx")  # SchNet reads only z and pos
HELD_OUT = 0.1  # share of the molecules for validation, and the share for the test


class GapModel(torch.nn.Module):
    """A SchNet that returns `(prediction, loss)` in eV, as the executor needs them."""

    def __init__(self, schnet: SchNet, num_graphs: int, column: int) -> None:
        super().__init__()
        self.schnet, self.num_graphs, self.column = schnet, num_graphs, column

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor, pairs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the predicted gaps [num_graphs] and their mean absolute error."""
        out = self.schnet(z, pos, batch, pairs, num_graphs=self.num_graphs, half_list=pairs is not None)
        prediction = out.flatten()  # [num_graphs]
        return prediction, l1_loss(prediction, y[:, self.column], graphs_mask)


def demo(arguments: Sequence[str]) -> int:
    """Run the demo with the options of a command line."""
    settings = command_parsers.demo(arguments, __version__)
    command_line.make_folder(settings.out)
    with folder_lock(settings.out):
        train(settings, load(settings))
    return 0


def train(settings: Namespace, dataset: InMemoryDataset) -> None:
    """Train, validate after each epoch and test once; print the results and write them to `settings.out`."""
    torch.manual_seed(settings.seed)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    ids = split(len(dataset), settings.limit, settings.seed)
    stores = {name: flatten(dataset[of], settings) for name, of in ids.items()}
    gap = dataset.y[:, GAP[settings.dataset]].float()
    mean, std = gap[ids["training"]].mean().item(), gap[ids["training"]].std().item()
    print("molecules: " + ", ".join(f"{len(of):,} for {name}" for name, of in ids.items()))

    sizes = FixedSizeOptions.tune(stores["training"], target_graphs=settings.batch_size)
    options = ipu.Options(device_iterations=settings.device_iterations, output_mode="all", num_threads=settings.threads)
    loaders = {
        name: FixedSizeDataLoader(
            store,
            shuffle=name == "training",
            fixed_size_options=sizes,
            fixed_size_strategy=FixedSizeStrategy.Window if name == "training" else FixedSizeStrategy.StreamPack,
            options=options,
            seed=settings.seed,
        )
        for name, store in stores.items()
    }
    largest = max(int(store.sizes[:, 0].max()) for store in stores.values())
    schnet = make_schnet(settings, mean, std, max_num_nodes=largest)
    model = GapModel(schnet, sizes.num_graphs, GAP[settings.dataset])
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    training, inference = ipu.training_model(model, options, optimizer), ipu.inference_model(model, options)
    print(f"batches: {loaders['training']}\nmodel: SchNet, {sum(w.numel() for w in model.parameters()):,} weights")

    history = []
    for epoch in range(1, settings.epochs + 1):
        title = f"epoch {epoch}/{settings.epochs}"
        start = time.perf_counter()
        train_mae = MEV * train_epoch(training, loaders["training"], title, len(ids["training"]))
        speed = len(ids["training"]) / (time.perf_counter() - start)
        schedule.step()
        training.set_optimizer(optimizer)
        validation = predict(inference, loaders["validation"])
        history.append((epoch, train_mae, MEV * mae(validation), speed))
        errors = f"training {train_mae:,.0f} meV, validation {history[-1][2]:,.0f} meV"
        print(f"{title}: {errors}, {speed:,.0f} graphs/s", flush=True)
    metrics = pd.DataFrame(history, columns=["epoch", "train_mae", "validation_mae", "graphs_per_second"])
    metrics["mean_predictor_mae"] = MEV * float((validation["gap"] - mean).abs().mean())
    test = predict(inference, loaders["test"])

    print("\nmean absolute errors in meV; mean_predictor_mae: always predicting the mean, on the validation molecules")
    print(metrics.to_string(index=False, float_format="{:,.0f}".format))
    print(f"\ntest: {MEV * mae(test):,.0f} meV on {len(test):,} molecules that nothing was chosen on")
    full = fill(loaders["training"], schnet, sizes.total_num_nodes)
    print("full: " + ", ".join(f"{share:.1%} of {what}" for what, share in full.items()))
    print(f"\n{training.report}\n")
    save(settings.out, metrics, test, training.report, schnet)


def flatten(dataset: InMemoryDataset, settings: Namespace) -> FlatStore:
    """Return a store of the molecules, with a list of the pairs of atoms unless each step searches for neighbors."""
    if settings.num_neighbors is not None:
        return FlatStore.from_dataset(dataset, exclude_keys=UNUSED)
    list_pairs = PrecomputeInteractionGraph(settings.cutoff, half_list=True)
    molecules = progress(dataset, "listing pairs of atoms", "molecules")
    return FlatStore.from_dataset([list_pairs(Data(z=one.z, pos=one.pos, y=one.y)) for one in molecules])


def split(num_molecules: int, limit: int | None, seed: int) -> dict[str, np.ndarray]:
    """Draw the molecules for training, validation and test at random, `limit` molecules in total."""
    order = torch.randperm(num_molecules, generator=torch.Generator().manual_seed(seed)).numpy()[:limit]
    held_out = round(HELD_OUT * len(order))
    validation, test, training = np.split(order, [held_out, 2 * held_out])
    return {"training": training, "validation": validation, "test": test}


def make_schnet(settings: Namespace, mean: float, std: float, max_num_nodes: int) -> SchNet:
    """Return a SchNet with outputs around the mean of the targets, on the scale of the targets (eV)."""
    k = settings.num_neighbors
    return SchNet(
        hidden_channels=settings.hidden_channels,
        num_filters=settings.hidden_channels,
        num_interactions=settings.num_interactions,
        num_gaussians=32,
        cutoff=settings.cutoff,
        interaction_graph=None if k is None else KNNInteractionGraph(k, settings.cutoff, max_num_nodes),
        readout="mean",  # the gap does not grow with the molecule
        mean=mean,
        std=std,
    )


def call(model: ipu.CompiledStep, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the predictions and losses of all mini-batches of one call."""
    pairs = {"pairs": batch.edge_index} if "edge_index" in batch else {}
    return model(batch.z, batch.pos, batch.batch, batch.y, batch.graphs_mask, **pairs)


def train_epoch(training: ipu.CompiledStep, batches: FixedSizeDataLoader, title: str, num_graphs: int) -> float:
    """Train for one epoch and return the mean absolute error during it (eV)."""
    error, seen = 0.0, 0
    with bar(title, "graphs", total=num_graphs) as shown:
        for batch in batches:
            _, loss = call(training, batch)
            real = batch.graphs_mask.view(len(loss), -1).sum(1)  # [mini-batches]
            error += (loss * real).sum().item()
            seen += int(real.sum())
            shown.update(int(real.sum()))
            shown.set_postfix_str(f"loss {MEV * error / seen:.0f} meV")
    return error / seen


def predict(inference: ipu.CompiledStep, batches: FixedSizeDataLoader) -> pd.DataFrame:
    """Return the label and the prediction of each real molecule (eV)."""
    gaps, predictions = [], []
    for batch in batches:
        prediction, _ = call(inference, batch)
        gaps.append(batch.y[batch.graphs_mask, inference.column])
        predictions.append(prediction[batch.graphs_mask])
    return pd.DataFrame({"gap": torch.cat(gaps).numpy(), "prediction": torch.cat(predictions).numpy()})


def fill(batches: FixedSizeDataLoader, schnet: SchNet, num_nodes: int) -> dict[str, float]:
    """Return the share of real nodes, edges and graphs; edges are listed pairs, or edges of the interaction graph."""
    shares = []
    for batch in islice(batches, 10):
        edges = batch.edges_mask if "edge_index" in batch else near(batch, schnet, num_nodes)
        shares.append([mask.float().mean().item() for mask in (batch.nodes_mask, edges, batch.graphs_mask)])
    return dict(zip(("nodes", "edges", "graphs"), torch.tensor(shares).mean(0).tolist(), strict=True))


def near(batch: Batch, schnet: SchNet, num_nodes: int) -> Tensor:
    """Return a mask of the interaction graph's edges that are shorter than the cutoff."""
    parts = (t.split(num_nodes) for t in (batch.pos, batch.batch, batch.nodes_mask))
    graph = schnet.interaction_graph
    return torch.cat([graph(p, of, nodes_mask=m)[1] < schnet.cutoff for p, of, m in zip(*parts, strict=True)])


def mae(predicted: pd.DataFrame) -> float:
    """Return the mean absolute error (eV)."""
    return float((predicted["prediction"] - predicted["gap"]).abs().mean())


def save(folder: Path, metrics: pd.DataFrame, test: pd.DataFrame, report: ipu.Report, schnet: SchNet) -> None:
    """Write the figures, the errors, the report and the weights, each file as a whole."""
    curve = plots.loss_curve(metrics, mean_predictor=metrics["mean_predictor_mae"].iloc[-1])
    scatter = plots.prediction_scatter(test["gap"], test["prediction"])
    weights = BytesIO()  # written to the disk below, since torch's error about a full disk names no file
    torch.save(schnet.state_dict(), weights)
    written: dict[str, Callable[[Path], object]] = {
        "loss.png": lambda path: write_png(curve, path),
        "predictions.png": lambda path: write_png(scatter, path),
        "metrics.csv": lambda path: metrics.to_csv(path, index=False),
        "report.txt": lambda path: path.write_text(f"{report}\n"),
        "report.json": lambda path: report.to_json(path),
        "report.html": lambda path: report.to_html(path, title="SchNet on small molecules, one training step"),
        "weights.pt": lambda path: path.write_bytes(weights.getvalue()),
    }
    for name, write in written.items():
        with written_whole(folder / name) as partial:
            write(partial)
    print(f"wrote {', '.join(written)} to {folder}/\nopen {folder}/report.html to see what the machine did")


def load(settings: Namespace) -> InMemoryDataset:
    """Return the molecules, with `z`, `pos` (angstrom) and the targets `y`.

    Raises:
        ValueError: The folder of QM9 is not given or missing, or PyG can neither read QM9 nor download it.
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
