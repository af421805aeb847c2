"""Complete a knowledge graph by embeddings, with sharded entities: which entity is at the other end of a relation?

    python examples/knowledge_graph.py --dataset kinship
    python examples/knowledge_graph.py --dataset umls --model rotate --shards 4
    python examples/knowledge_graph.py --dataset fb15k237 --minutes 60
    torchrun --nproc-per-node 2 examples/knowledge_graph.py --dataset kinship --shards 4

The first command takes ten seconds on one core and reaches a mean reciprocal rank (MRR) of 0.85 for the true entity of
a test triple, ranked among all entities without other known answers. ConvE's authors publish 0.83 for this split
(https://github.com/TimDettmers/ConvE). Expect 0.95 for `umls` in half a minute (published 0.94), 0.46 for `wn18rr` in
five to ten minutes (0.475 by LibKGE), 0.34 for `fb15k237` after 25 epochs, in 15 minutes (0.348). Losses do not depend
on the number of processes. `--root` is a folder with `FB15k-237`, `WN18RR`, `umls` or `kinship`, each with `train.txt`,
`valid.txt` and `test.txt` from the .tar.gz files of https://github.com/TimDettmers/ConvE, or with a `triples.npz` of
`train`, `valid` and `test`, each int [n, 3] with head, relation and tail. The default is `kg` in the folder named by
POPGEO_SHARED_DATA.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from popgeo import ipu
from popgeo.command_line import run
from popgeo.convert import read_triples
from popgeo.loader import TripleLoader
from popgeo.nn import (
    ComplEx,
    DistMult,
    KnowledgeGraphModel,
    KnownTriples,
    Ranks,
    RotatE,
    ShardedTraining,
    SoftmaxLoss,
    TransE,
    TripleEnd,
    rank_entities,
)
from popgeo.sampling import EntityShards

MODELS: dict[str, Callable[[int, int, int], KnowledgeGraphModel]] = {
    "complex": ComplEx,
    "distmult": DistMult,
    "rotate": RotatE,
    "transe": TransE,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The training settings of a graph, and the published MRR on its test split with its source."""

    folder: str
    channels: int
    epochs: int
    batch_size: int
    negatives: int | None
    n3: float
    reciprocal: bool
    published: str


CONVE = "ConvE by its authors, https://github.com/TimDettmers/ConvE"
LIBKGE = "ComplEx by LibKGE, https://github.com/uma-pi1/kge"
SETTINGS = {
    "umls": Setting(
        folder="umls", channels=128, epochs=40, batch_size=256, negatives=None, n3=0.005, reciprocal=False,
        published=f"0.94, {CONVE}",
    ),
    "kinship": Setting(
        folder="kinship", channels=64, epochs=20, batch_size=512, negatives=None, n3=0.01, reciprocal=False,
        published=f"0.83, {CONVE}",
    ),
    "fb15k237": Setting(
        folder="FB15k-237", channels=128, epochs=60, batch_size=512, negatives=1024, n3=0.05, reciprocal=True,
        published=f"0.348, {LIBKGE}",
    ),
    "wn18rr": Setting(
        folder="WN18RR", channels=128, epochs=20, batch_size=1024, negatives=1024, n3=0.1, reciprocal=True,
        published=f"0.475, {LIBKGE}",
    ),
}  # fmt: skip


def read(root: Path, folder: str) -> dict[str, Tensor]:
    """Read the triples of each split from ConvE's text files, with common numbers for names, or from an .npz."""
    names = ("train", "valid", "test")
    if (root / folder / "train.txt").exists():
        texts = [(root / folder / f"{name}.txt").read_text() for name in names]
        everything = read_triples(StringIO("".join(texts))).triples  # type: ignore[arg-type]  # pandas reads either
        return dict(zip(names, everything.split([len(text.splitlines()) for text in texts]), strict=True))
    with np.load(root / folder / "triples.npz") as held:
        return {split: torch.from_numpy(held[split].astype(np.int64)) for split in names}


def both_ways(triples: Tensor, num_relations: int) -> Tensor:
    """Return the triples followed by their converses with separate relations: (t, r + num_relations, h).

    Then all queries ask for tails, and the converse relations have their own weights, arXiv:1806.07297 section 5.
    """
    head, relation, tail = triples.unbind(1)
    return torch.cat([triples, torch.stack([tail, relation + num_relations, head], dim=1)])


def place() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def local_part(name: str, model: KnowledgeGraphModel, shards: EntityShards, num_local: int) -> KnowledgeGraphModel:
    """Return a model of the same relations and the entities of this process's shards."""
    first = place()[0] * num_local
    part = MODELS[name](num_local * shards.num_rows, model.num_relations, model.hidden_channels)
    state = dict(model.state_dict())
    for key, table in model.entity_tables.items():
        state[key] = shards.spread(table.detach())[first : first + num_local].flatten(0, 1)
    part.load_state_dict(state)
    return part


def collect(into: KnowledgeGraphModel, part: KnowledgeGraphModel, shards: EntityShards) -> KnowledgeGraphModel:
    """Collect the whole model in every process."""
    state = dict(part.state_dict())
    for name, table in part.entity_tables.items():
        tables = [torch.empty_like(table) for _ in range(place()[1])]
        if dist.is_initialized():
            dist.all_gather(tables, table.detach().contiguous())
        else:
            tables = [table.detach()]
        state[name] = shards.collect(torch.cat(tables))
    into.load_state_dict(state)
    return into


def rank(model: KnowledgeGraphModel, triples: Tensor, known: list[KnownTriples]) -> Ranks:
    """Rank both ends, one after the other; with converses, rank each triple's and its converse's tail."""
    return Ranks.join(*(rank_entities(model, triples, of_side) for of_side in known))


def train(arguments: argparse.Namespace, setting: Setting, splits: dict[str, Tensor]) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    everything = torch.cat(list(splits.values()))
    num_nodes, num_relations = int(everything[:, [0, 2]].max()) + 1, int(everything[:, 1].max()) + 1
    sides = tuple(TripleEnd)
    if arguments.reciprocal:
        splits = {name: both_ways(triples, num_relations) for name, triples in splits.items()}
        everything, num_relations, sides = both_ways(everything, num_relations), 2 * num_relations, (TripleEnd.TAIL,)
    known = [KnownTriples(everything, num_nodes, num_relations, side) for side in sides]

    process, world_size = place()
    shards = EntityShards.deal(num_nodes, arguments.shards, seed=arguments.seed)
    num_local = arguments.shards // world_size
    slots = max(1, arguments.batch_size // arguments.shards**2)
    negatives = None if arguments.negatives == 0 else max(1, arguments.negatives // arguments.shards)
    loader = TripleLoader(
        splits["train"], shards, slots, negatives, seed=arguments.seed, rank=process, world_size=world_size
    )
    whole = MODELS[arguments.model](num_nodes, num_relations, arguments.channels)
    part = local_part(arguments.model, whole, shards, num_local)
    loss = SoftmaxLoss(None if negatives is None else num_nodes)
    model = ShardedTraining(part, loss, num_shards=arguments.shards, num_local=num_local, sides=sides, n3=arguments.n3)
    options = ipu.Options(replication_factor=world_size, strict=False)
    step = ipu.training_model(model, options, torch.optim.Adagrad(model.parameters(), lr=arguments.lr))
    if process == 0:
        print(loader, flush=True)

    start = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        losses = torch.stack([step(*batch) for batch in loader]).mean()
        seconds = torch.tensor(time.perf_counter() - start)
        if dist.is_initialized():
            dist.all_reduce(losses)
            dist.broadcast(seconds, src=0)  # so that all processes stop at the same epoch
        done = epoch == arguments.epochs or seconds > 60 * arguments.minutes
        if done or epoch % max(1, arguments.epochs // 10) == 0:
            found = rank(collect(whole, part, shards), splits["valid"], known)
            if process == 0:
                line = f"epoch {epoch}: loss {losses / world_size:.4f}, valid MRR {found.mrr():.3f}"
                print(f"{line}, Hits@10 {found.hits(10):.3f}, {seconds:.0f} s", flush=True)
        if done:
            break
    if process == 0:
        found = rank(whole, splits["test"], known)
        hits = ", ".join(f"Hits@{k} {found.hits(k):.3f}" for k in (1, 3, 10))
        print(f"test MRR {found.mrr():.3f}, {hits}; published MRR {setting.published}")
        print(f"a step on a modelled Bow IPU: {step.report.total_cycles:,.0f} cycles")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = os.environ.get("POPGEO_SHARED_DATA")
    parser.add_argument("--dataset", choices=SETTINGS, default="kinship")
    parser.add_argument("--model", choices=MODELS, default="complex")
    parser.add_argument("--root", type=Path, default=Path(shared or "data") / "kg", help="folder of the datasets")
    parser.add_argument("--channels", type=int, help="channels per embedding; complex channels for a complex model")
    parser.add_argument("--epochs", type=int, help="largest number of epochs")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no epoch after these minutes of training")
    parser.add_argument("--batch-size", type=int, help="triples per batch, over all shards")
    parser.add_argument("--negatives", type=int, help="random entities per batch, over all shards; 0 uses every entity")
    parser.add_argument("--n3", type=float, help="weight of the N3 penalty")
    parser.add_argument(
        "--reciprocal", action=argparse.BooleanOptionalAction, help="use a separate relation for each converse"
    )
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of Adagrad")
    parser.add_argument("--shards", type=int, default=1, help="number of shards; a multiple of the number of processes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    setting = SETTINGS[arguments.dataset]
    for name in ("channels", "epochs", "batch_size", "negatives", "n3", "reciprocal"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(setting, name) or 0)
    splits = read(arguments.root, setting.folder)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    train(arguments, setting, splits)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
