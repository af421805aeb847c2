"""Train embeddings in four shards for a few steps, in one process or as one of two.

python -m tests.support.sharded_training FOLDER RANK
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from popgeo.ipu import Options, training_model
from popgeo.loader import TripleLoader
from popgeo.nn import ComplEx, LogSigmoidLoss, ShardedTraining
from popgeo.sampling import EntityShards

SHARDS = EntityShards.deal(23, num_shards=4)
RELATIONS, CHANNELS = 3, 4


def make_triples(number: int = 300) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    limits = SHARDS.num_entities, RELATIONS, SHARDS.num_entities
    return torch.stack([torch.randint(n, (number,), generator=generator) for n in limits], dim=1)


def train(rank: int = 0, world_size: int = 1, epochs: int = 2) -> dict[str, Tensor]:
    """Train; return the losses of each step and the weights of this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    whole, num_local = ComplEx(SHARDS.num_entities, RELATIONS, CHANNELS).double(), SHARDS.num_shards // world_size
    part = ComplEx(num_local * SHARDS.num_rows, RELATIONS, CHANNELS).double()
    state = dict(whole.state_dict())
    for name, table in whole.entity_tables.items():
        state[name] = SHARDS.spread(table.detach()).unflatten(0, (world_size, num_local))[rank].flatten(0, 1)
    part.load_state_dict(state)
    if rank:
        torch.nn.init.zeros_(part.rel_emb.weight)  # the relations of the first process are used
    model = ShardedTraining(part, LogSigmoidLoss(), num_shards=SHARDS.num_shards, num_local=num_local, n3=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    step = training_model(model, Options(replication_factor=world_size, strict=False), optimizer)
    loader = TripleLoader(make_triples(), SHARDS, slots=9, num_negatives=3, seed=0, rank=rank, world_size=world_size)
    losses = [step(*batch._replace(weight=batch.weight.double())) for _ in range(epochs) for batch in loader]
    return {"losses": torch.stack(losses), **dict(part.state_dict())}


def join(folder: str | Path, rank: int) -> None:
    """Join the process group as one of two processes."""
    file = f"file://{Path(folder) / 'meeting'}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=2, timeout=timedelta(seconds=120))


if __name__ == "__main__":
    join(sys.argv[1], int(sys.argv[2]))
    torch.save(train(int(sys.argv[2]), 2), Path(sys.argv[1]) / f"{sys.argv[2]}.pt")
    dist.destroy_process_group()
