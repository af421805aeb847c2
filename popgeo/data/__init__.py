"""Combines graphs into batches of fixed shape."""

from typing import TYPE_CHECKING

from popgeo.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from popgeo.data.attribute_names import register_attributes as register_attributes
    from popgeo.data.axes import Level as Level
    from popgeo.data.bridges import GraphsTuple as GraphsTuple
    from popgeo.data.bridges import as_arrays as as_arrays
    from popgeo.data.bridges import to_graphs_tuple as to_graphs_tuple
    from popgeo.data.collate import FixedSizeCollater as FixedSizeCollater
    from popgeo.data.fixed_size_options import FixedSizeOptions as FixedSizeOptions
    from popgeo.data.flat_store import FlatStore as FlatStore
    from popgeo.data.pad import Pad as Pad
    from popgeo.data.pad import unpad as unpad
    from popgeo.data.trim import OverSizeStrategy as OverSizeStrategy
    from popgeo.data.write_store import write as write
else:
    __getattr__, __dir__, __all__ = _lazy_names(__name__)
