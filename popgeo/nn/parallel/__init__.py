"""Layers whose weights lie in shards, as many IPUs hold them: tensor parallelism."""
