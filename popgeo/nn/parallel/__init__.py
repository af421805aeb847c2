"""Tensor parallelism: layers whose weights are sharded, with one shard per IPU or per process."""
