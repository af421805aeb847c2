"""Loaders of one large graph: clusters of it, or seeds with sampled neighbors."""
