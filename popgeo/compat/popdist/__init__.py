"""Functions of `popdist`, which starts several processes. Here they report a single process."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from popgeo.compat.account import honoured, recorded
from popgeo.compat.import_names import fill_module
from popgeo.compat.poptorch.options import Options as PoptorchOptions

_ANSWERS = {"isPopdistEnvSet": False, "getDeviceId": 0, "getInstanceIndex": 0, "init": None}
_ANSWERS |= dict.fromkeys(["getNumInstances", "getNumLocalReplicas", "getNumTotalReplicas"], 1)
globals().update({name: partial(_ANSWERS.get, name) for name in _ANSWERS})
honoured("import popdist", "it reports a single process")


class PopdistOptions(PoptorchOptions):
    """PopTorch's options as `popdist.poptorch.Options` makes them for one process.

    Args:
        ipus_per_replica: Number of IPUs of one replica. It is only recorded, since blocks decide it. Default: None.

    Example:
        >>> PopdistOptions(ipus_per_replica=2).deviceIterations(4).device_iterations
        4
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        if ipus_per_replica is not None:
            recorded("popdist.poptorch.Options(ipus_per_replica)", "the blocks of a model decide its number of IPUs")


def execute_on_instances(instances: Collection[int], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function if this process, number 0, is among the given processes.

    Args:
        instances: Numbers of the processes that call the function.
        function: Function to call.
        args: Arguments of the function.
        kwargs: Keyword arguments of the function.

    Returns:
        The result of the function. None if 0 is not among the numbers.

    Example:
        >>> execute_on_instances({0}, max, 1, 2)
        2
    """
    return function(*args, **kwargs) if 0 in instances else None


__getattr__ = fill_module(__name__)
