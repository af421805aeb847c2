"""Tensor parallelism: layers with weights in shards, one shard per IPU or per process."""
