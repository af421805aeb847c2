"""PyG's extensions `torch_scatter`, `torch_cluster` and `pyg_lib` under their own names, for any version of torch.

The import of this package makes them importable, and switches them on in PyG. An installed package keeps precedence;
`enable(shadow=True)` replaces it. One line on the log `popgeo.extensions` reports which package serves which name.

The packages in this folder import from popgeo by full names, and from each other by relative names, since they are
loaded under their own names: `torch_scatter` is not `popgeo.extensions.torch_scatter`.
"""

from popgeo.extension_path import engines as engines
from popgeo.extension_path import log_engines
from popgeo.extension_path import provide as enable
from popgeo.extension_path import withdraw as disable

__all__ = ["disable", "enable", "engines"]

enable()
log_engines()
