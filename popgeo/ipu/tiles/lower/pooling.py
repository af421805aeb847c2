"""Lowers pooling of images: each tile takes some samples of all operands, because samples are independent."""

from popgeo.ipu.tiles.lower.in_parts import by_rows

lower_pooling = by_rows
