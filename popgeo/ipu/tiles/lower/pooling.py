"""Lowers pooling of images: a tile takes samples of all operands, which are independent of each other."""

from popgeo.ipu.tiles.lower.in_parts import by_rows

lower_pooling = by_rows
