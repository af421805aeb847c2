"""What old programs ask of `popdist`, which starts several processes by `poprun`; here there is one process."""

from functools import partial

from popgeo.compat.account import honoured
from popgeo.compat.import_names import fill_module

_ANSWERS = {"isPopdistEnvSet": False, "getDeviceId": 0, "getInstanceIndex": 0, "init": None}
_ANSWERS |= dict.fromkeys(["getNumInstances", "getNumLocalReplicas", "getNumTotalReplicas"], 1)
globals().update({name: partial(_ANSWERS.get, name) for name in _ANSWERS})
__getattr__ = fill_module(__name__)
honoured("import popdist", "it says that there is one process")
