"""Predict links between entities that are absent from training: NBFNet on an inductive split of FB15k-237.

    python examples/nbfnet_inductive.py --root data/kg/inductive --name fb237_v1

The folder has GraIL's splits (https://github.com/kkteru/grail, folder data): `NAME/train.txt`, `valid.txt` and
`test.txt`, and the same files of `NAME_ind`, optionally with `.gz` appended, with one `head <tab> relation <tab> tail`
per line. The default is `kg/inductive` in the folder named by POPGEO_SHARED_DATA, if it is set.

The model learns on the graph of NAME and predicts on the graph of NAME_ind, which has the same relations but no common
entity. In training, a mask hides the edges that contain a query's own answer, so every step has one shape. Both graphs
have the same number of slots, so one compiled step predicts on both. After each epoch, the links of NAME's validation
set are ranked. The weights of the best epoch are tested: each link is a query for its tail and a query for its head.
Hits@10 is the expected value among 50 random negatives; ranks are filtered, and equal scores share their ranks.

Expect on `fb237_v1` after the default four epochs, about five minutes of processor time on one core: Hits@10 0.82 and
MRR 0.44 on new entities, with aggregation by sums. The paper's model reaches 0.834 with PNA and 20 epochs; a step with
`--aggregation pna` takes seven times as long.
"""

import argparse
import copy
import gzip
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from popgeo import Options, inference_model, training_model
from popgeo.command_line import run
from popgeo.ipu import CompiledStep
from popgeo.nn import NBFNet, Ranks, filtered_ranks, masked_mean, own_links


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Facts, and the queries about them as triples (head, relation, tail) with their inverses, [3, any]."""

    edge_index: Tensor
    edge_type: Tensor
    num_nodes: int
    train: Tensor
    valid: Tensor
    test: Tensor

    @property
    def num_edges(self) -> int:
        """Number of facts, including inverses."""
        return self.edge_type.numel()

    def __str__(self) -> str:
        parts = (f"{getattr(self, part).size(1) // 2} {part}" for part in ("train", "valid", "test"))
        return f"{self.num_nodes} entities, links: {', '.join(parts)}"

    def known(self, head: Tensor, relation: Tensor, among: Tensor, num_slots: int) -> Tensor:
        """Return a mask of the tails that answer queries, by the triples `among` [num_queries, num_slots]."""
        same = (among[0] == head.unsqueeze(1)) & (among[1] == relation.unsqueeze(1))  # [num_queries, num_triples]
        places = among[2].expand_as(same)
        return torch.zeros(len(head), num_slots).scatter_add_(1, places, same.float()) > 0


def number(names: dict[str, int], name: str) -> int:
    """Return the number of a name; a new name gets the next number."""
    return names.setdefault(name, len(names))


def read(folder: Path, relations: dict[str, int], most: int | None) -> Graph:
    """Read a graph of a split, and add its new relations to `relations`. Relation r of R has the inverse r + R."""
    entities: dict[str, int] = {}
    triples: dict[str, list[tuple[int, int, int]]] = {}
    for part in ("train", "valid", "test"):
        path = folder / f"{part}.txt"
        packed = path.with_name(f"{part}.txt.gz")
        with gzip.open(packed, "rt") if packed.exists() else open(path) as file:
            rows = [line.split() for line in file]
        triples[part] = [
            (number(entities, head), number(relations, relation), number(entities, tail))
            for head, relation, tail in rows
        ]
    both = {}
    for part, found in triples.items():
        head, relation, tail = torch.tensor(found[:most]).T
        inverse = torch.stack([tail, relation + len(relations), head])
        both[part] = torch.cat([torch.stack([head, relation, tail]), inverse], dim=1)
    return Graph(edge_index=both["train"][[0, 2]], edge_type=both["train"][1], num_nodes=len(entities), **both)


@dataclass(frozen=True, kw_only=True)
class Slots:
    """A graph in a fixed number of slots, in the form that the model expects."""

    edge_index: Tensor
    edge_type: Tensor
    edges_mask: Tensor
    nodes_mask: Tensor

    @staticmethod
    def of(graph: Graph, num_nodes: int, num_edges: int) -> "Slots":
        free = num_edges - graph.edge_type.numel()
        return Slots(
            edge_index=nn.functional.pad(graph.edge_index, (0, free)),
            edge_type=nn.functional.pad(graph.edge_type, (0, free)),
            edges_mask=torch.arange(num_edges) < graph.edge_type.numel(),
            nodes_mask=torch.arange(num_nodes) < graph.num_nodes,
        )


class Training(nn.Module):
    """The model and its loss, self-adversarial binary cross-entropy, eq. 8 of the paper."""

    def __init__(self, model: NBFNet, num_relations: int, temperature: float) -> None:
        super().__init__()
        self.model, self.num_relations, self.temperature = model, num_relations, temperature

    def forward(
        self,
        head: Tensor,
        relation: Tensor,
        tails: Tensor,
        real: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        edges_mask: Tensor,
        nodes_mask: Tensor,
    ) -> Tensor:
        """Return the loss of queries [num_queries]; the first of the tails [num_queries, 1 + num_negatives] is true."""
        hidden = own_links(head, relation, tails[:, 0], edge_index, edge_type, self.num_relations)
        masks = {"hidden": hidden, "edges_mask": edges_mask, "nodes_mask": nodes_mask}
        num_nodes = nodes_mask.size(0)
        score = self.model(head, relation, edge_index, edge_type, num_nodes=num_nodes, tails=tails, **masks)
        right, wrong = nn.functional.softplus(-score[:, 0]), nn.functional.softplus(score[:, 1:])
        weight = (score[:, 1:].detach() / self.temperature).softmax(1)
        return masked_mean((right + (weight * wrong).sum(1)) / 2, real)


class Answering(nn.Module):
    """The model with scores for all nodes of a graph."""

    def __init__(self, model: NBFNet) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        head: Tensor,
        relation: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        edges_mask: Tensor,
        nodes_mask: Tensor,
    ) -> Tensor:
        """Return the score of each node as the tail [num_queries, num_nodes]."""
        masks = {"edges_mask": edges_mask, "nodes_mask": nodes_mask}
        return self.model(head, relation, edge_index, edge_type, num_nodes=nodes_mask.size(0), **masks)


def batches(triples: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield triples in batches [3, size] and their masks; the last batch is filled with copies of its first triple."""
    for part in triples.split(size, dim=1):
        real = torch.arange(size) < part.size(1)
        yield part[:, torch.where(real, torch.arange(size), 0)], real


def rank(answer: CompiledStep, graph: Graph, slots: Slots, triples: Tensor, size: int) -> tuple[float, float]:
    """Return the mean reciprocal rank of queries, and their Hits@10 among 50 negatives."""
    ranks, candidates = [], []
    facts = torch.cat([graph.train, graph.valid, graph.test], dim=1)
    for (head, relation, tail), real in batches(triples, size):
        scores = answer(head, relation, **vars(slots))
        known = graph.known(head, relation, facts, scores.size(1))
        ranks.append(filtered_ranks(scores[real], tail[real], known[real]))
        candidates.append((slots.nodes_mask & ~known).sum(1)[real])
    found = Ranks.join(*ranks)
    return found.mrr(), found.hits_among(50, k=10, num_candidates=torch.cat(candidates))


def draw(graph: Graph, slots: Slots, size: int, num_negatives: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield an epoch: each link once, as a query for its tail or its head, with unknown tails as negatives."""
    num_links = graph.train.size(1) // 2
    chosen = torch.arange(num_links) + num_links * torch.randint(2, (num_links,))
    for (head, relation, tail), real in batches(graph.train[:, chosen[torch.randperm(num_links)]], size):
        known = graph.known(head, relation, graph.train, len(slots.nodes_mask))
        wrong = torch.multinomial((slots.nodes_mask & ~known).float(), num_negatives, replacement=True)
        yield head, relation, torch.cat([tail.unsqueeze(1), wrong], dim=1), real


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = os.environ.get("POPGEO_SHARED_DATA")
    default = Path(shared) / "kg" / "inductive" if shared else Path("data/kg/inductive")
    parser.add_argument("--root", type=Path, default=default, help="folder of the splits")
    parser.add_argument("--name", default="fb237_v1", help="split for training; NAME_ind is for testing")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--aggregation", choices=("sum", "pna"), default="sum")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=15.0, help="start no epoch after these processor minutes")
    parser.add_argument("--batch-size", type=int, default=16, help="queries per step")
    parser.add_argument("--negatives", type=int, default=32, help="wrong tails per query in training")
    parser.add_argument("--temperature", type=float, default=0.5, help="temperature of the weights of wrong tails")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--links", type=int, help="number of links for training, validation and test each")
    parser.add_argument("--seed", type=int, default=0)
    choices = parser.parse_args()
    torch.manual_seed(choices.seed)

    relations: dict[str, int] = {}
    seen = read(choices.root / choices.name, relations, choices.links)
    num_relations = 2 * len(relations)
    unseen = read(choices.root / f"{choices.name}_ind", relations, choices.links)
    if 2 * len(relations) > num_relations:
        raise OSError(
            f"{choices.name}_ind has relations that {choices.name} lacks; they are not two parts of one split."
        )
    num_nodes, num_edges = (max(getattr(g, n) for g in (seen, unseen)) for n in ("num_nodes", "num_edges"))
    slots, unseen_slots = (Slots.of(graph, num_nodes, num_edges) for graph in (seen, unseen))
    print(f"{choices.name}: {seen}\n{choices.name}_ind: {unseen}\n{num_nodes} node slots, {num_edges} edge slots")

    model = NBFNet(num_relations, choices.channels, choices.layers, aggregation=choices.aggregation)
    training = Training(model, num_relations, choices.temperature)
    options = Options(strict=False)  # a step may need more memory than one IPU has
    step = training_model(training, options, torch.optim.Adam(training.parameters(), lr=choices.lr))
    answer = inference_model(Answering(model), options)
    start, best, best_state = time.process_time(), -1.0, copy.deepcopy(model.state_dict())
    for epoch in range(choices.epochs):
        if time.process_time() - start > 60 * choices.minutes:
            print(f"{choices.minutes:g} minutes are over")
            break
        drawn = draw(seen, slots, choices.batch_size, choices.negatives)
        losses = [float(step(*queries, **vars(slots))) for queries in drawn]
        mrr, hits = rank(answer, seen, slots, seen.valid, choices.batch_size)
        if mrr > best:
            best, best_state = mrr, copy.deepcopy(model.state_dict())
        took = (time.process_time() - start) / 60
        print(
            f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, validation on entities seen: MRR {mrr:.3f}, "
            f"Hits@10 of 50 {hits:.3f}, {took:.1f} minutes",
            flush=True,
        )
    model.load_state_dict(best_state)
    mrr, hits = rank(answer, unseen, unseen_slots, unseen.test, choices.batch_size)
    print(f"test on entities never seen: MRR {mrr:.3f}, Hits@10 of 50 negatives {hits:.3f}")


if __name__ == "__main__":
    run(main)
