"""PyG as it is while a model is compiled: functions that read data refuse, with the argument that they need.

What stands in for PyG's own functions while a model is compiled is `popgeo.capture.static_forms`.
"""

from typing import Any

import torch_geometric

from popgeo.compat.poptorch.compiling import registerPostCompileHook, registerPreCompileHook
from popgeo.compat.poptorch_geometric.common import call_once

_FLAG = "disable_dynamic_shapes"


class SubstitutionManager:
    """Lets PyG refuse what has no fixed shape, with the argument that it needs, while the block runs.

    Example:
        >>> import torch
        >>> from torch_geometric.utils import to_dense_batch
        >>> with SubstitutionManager():
        ...     to_dense_batch(torch.ones(2, 1), torch.tensor([0, 1]))
        Traceback (most recent call last):
            ...
        ValueError: Dynamic shapes disabled. Argument 'batch_size' needs to be set
    """

    def replace(self) -> None:
        """Begins."""
        torch_geometric.experimental.set_experimental_mode(True, _FLAG)

    def restore(self) -> None:
        """Ends."""
        torch_geometric.experimental.set_experimental_mode(False, _FLAG)

    def __enter__(self) -> "SubstitutionManager":
        self.replace()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.restore()


@call_once
def register() -> None:
    """Has executors of PopTorch compile models in the block above."""
    manager = SubstitutionManager()
    registerPreCompileHook(manager.replace)
    registerPostCompileHook(manager.restore)
