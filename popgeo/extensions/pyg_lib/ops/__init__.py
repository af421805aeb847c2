"""Operations of pyg-lib over popgeo's and torch's."""

import sys
from typing import Any

from popgeo.extension_path import keep_relations_apart

from . import grouped_products
from .grouped_products import segment_matmul as segment_matmul
from .point_pairs import fps as fps
from .point_pairs import graclus_cluster as graclus_cluster
from .point_pairs import grid_cluster as grid_cluster
from .point_pairs import knn as knn
from .point_pairs import knn_graph as knn_graph
from .point_pairs import nearest as nearest
from .point_pairs import radius as radius
from .point_pairs import radius_graph as radius_graph
from .scatter_reduce import fused_scatter_reduce as fused_scatter_reduce
from .scatter_reduce import index_sort as index_sort
from .scatter_reduce import softmax_csr as softmax_csr
from .splines import spline_basis as spline_basis
from .splines import spline_weighting as spline_weighting


def __getattr__(name: str) -> Any:
    """Return `grouped_matmul`, except to PyG, whose `HeteroDictLinear` would give its products to the wrong types.

    PyG asks when it is imported.
    """
    if name != "grouped_matmul":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys._getframe(1).f_globals.get("__name__") == "torch_geometric.typing":
        keep_relations_apart()
        raise AttributeError(name)
    return grouped_products.grouped_matmul
