"""The training step of a knowledge graph's embeddings with entities in shards and balanced exchange."""

import torch
from torch import Tensor, nn

from popgeo.nn.loss import masked_mean
from popgeo.nn.models.knowledge_graph import KnowledgeGraphModel, TripleEnd
from popgeo.nn.triple_loss import TripleLoss
from popgeo.ops.shard_exchange import exchange_shards


class ShardedTraining(nn.Module):
    """The loss of triples against negatives of every shard, by balanced entity sampling and sharing (BESS).

    Each shard has its triples' heads, and holds equally many tails and negatives for every other shard. These are
    looked up, exchanged in one balanced step and scored where the heads are (arXiv:2211.12281). With one shard this is
    ordinary training against shared negatives. The losses do not depend on the processes that hold the shards.

    Args:
        model: The embeddings; their entities are the rows of the local shards, one shard after the other.
        loss: Function that compares triples with negatives.
        num_shards: Number of shards in all processes.
        num_local: Shards of this process. Default: all. With fewer, the tables of entities belong to this process:
            training neither shares their weights with other processes nor adds up their gradients.
        sides: Ends of a triple that negatives replace; the loss is the mean over them.
        n3: Weight of the cubed absolute values of head, relation and tail, arXiv:1806.07297; 0 leaves them out.

    Raises:
        ValueError: there is no side, or the numbers of shards do not fit each other or the model.

    Example:
        >>> from popgeo.nn import DistMult, SoftmaxLoss
        >>> training = ShardedTraining(DistMult(6, 2, 4), SoftmaxLoss(), num_shards=2)  # two shards of three rows
        >>> rows = torch.zeros(2, 2, 1, dtype=torch.long)  # one slot for each pair of shards, one negative
        >>> some, weight = torch.ones(2, 2, 1, dtype=torch.bool), torch.full((2,), 2.0)
        >>> training(rows, rows, rows, some, rows, rows, rows, rows + 5, weight).shape
        torch.Size([])
    """

    def __init__(
        self,
        model: KnowledgeGraphModel,
        loss: TripleLoss,
        *,
        num_shards: int = 1,
        num_local: int | None = None,
        sides: tuple[TripleEnd | str, ...] = (TripleEnd.HEAD, TripleEnd.TAIL),
        n3: float = 0.0,
    ) -> None:
        super().__init__()
        num_local = num_shards if num_local is None else num_local
        if not sides:
            raise ValueError("sides is empty; name one end of the triples, or both.")
        if num_local < 1 or num_shards % num_local or model.num_nodes % num_local:
            raise ValueError(
                f"There are {num_shards} shards, {num_local} of them here, and the model has {model.num_nodes} rows of "
                "entities. Processes hold equally many shards and shards equally many rows: EntityShards.num_rows each."
            )
        self.model, self.loss, self.n3 = model, loss, n3
        self.num_shards, self.num_local = num_shards, num_local
        self.sides = tuple(TripleEnd(side) for side in sides)
        if num_local < num_shards:
            for table in model.entity_tables.values():
                table.is_sharded = True  # type: ignore[attr-defined]  # the engine reads it

    def forward(
        self,
        head: Tensor,
        relation: Tensor,
        tail: Tensor,
        triples_mask: Tensor,
        head_entity: Tensor,
        tail_entity: Tensor,
        negative: Tensor,
        negative_entity: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Return the mean loss over the triples of the batch; `popgeo.loader.TripleBatch` explains the arguments."""
        # One look-up for all, because each look-up has a gradient as large as the whole table.
        rows = self._look_up(torch.cat([head, tail, negative], dim=2))
        own, theirs = rows.split([head.size(2), tail.size(2) + negative.size(2)], dim=2)
        heads = own.flatten(1, 2)  # [num_local, triples, width]
        tails, negatives = (
            part.flatten(1, 2)  # [num_local, triples, width] and [num_local, negatives, width]
            for part in exchange_shards(theirs).split([tail.size(2), negative.size(2)], dim=2)
        )
        relations = self.model.relations(relation.flatten(1))  # [num_local, triples, width]
        mask, candidates = triples_mask.flatten(1), negative_entity.flatten(1).unsqueeze(1)
        positive = self.model.similarity.of_rows(self.model.query(heads, relations, TripleEnd.TAIL), tails)
        divisor = weight.sum()  # with it the mean over processes is the mean over all triples

        total = positive.new_zeros(())
        for side in self.sides:
            known, asked = (heads, tail_entity) if side is TripleEnd.TAIL else (tails, head_entity)
            scores = self.model.similarity.of_pairs(self.model.query(known, relations, side), negatives)
            counts = (candidates != asked.flatten(1).unsqueeze(2)) & (candidates >= 0)
            total = total + self.loss(positive, scores, counts, mask, divisor)
        total = total / len(self.sides)
        if self.n3:
            cubes = sum((self.model.cubes(rows) for rows in (heads, relations, tails)), torch.zeros_like(positive))
            total = total + self.n3 * masked_mean(cubes, mask, divisor)
        return total

    def _look_up(self, rows: Tensor) -> Tensor:
        """Return the entities in rows of each local shard: [num_local, num_shards, n] -> [..., width]."""
        start = torch.arange(self.num_local, device=rows.device).view(-1, 1, 1)
        return self.model.entities(rows + start * (self.model.num_nodes // self.num_local))

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        sides = ", ".join(side.value for side in self.sides)
        return f"num_shards={self.num_shards}, num_local={self.num_local}, sides=({sides}), n3={self.n3}"
