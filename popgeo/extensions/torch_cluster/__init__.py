"""torch_cluster's functions over popgeo's searches, clusters and samples.

They run in eager code. While a model is compiled, popgeo replaces the searches by forms with a fixed number of pairs.
"""

from popgeo.capture import static_neighbors
from popgeo.ops.register_op import with_arguments_of

from . import searches, walks

__all__ = [
    "fps",
    "graclus_cluster",
    "grid_cluster",
    "knn",
    "knn_graph",
    "nearest",
    "neighbor_sampler",
    "radius",
    "radius_graph",
    "random_walk",
]
__version__ = "1.6.3"  # version of torch_cluster with these names

fps = with_arguments_of("torch_cluster", searches.fps)
graclus_cluster = with_arguments_of("torch_cluster", walks.graclus_cluster)
grid_cluster = with_arguments_of("torch_cluster", static_neighbors.grid_cluster)
knn = with_arguments_of("torch_cluster", searches.knn)
knn_graph = with_arguments_of("torch_cluster", searches.knn_graph)
nearest = with_arguments_of("torch_cluster", searches.nearest)
neighbor_sampler = with_arguments_of("torch_cluster", walks.neighbor_sampler)
radius = with_arguments_of("torch_cluster", searches.radius)
radius_graph = with_arguments_of("torch_cluster", searches.radius_graph)
random_walk = walks.random_walk
