"""The enumerations that old programs take from PopART to set `Options._Popart`; there is no PopART here."""

from enum import IntEnum

from popgeo.compat.account import ignored

_MEMBERS = {
    "AccumulateOuterFragmentSchedule": "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    "RecomputationType": "NoRecompute Standard NormOnly Pipeline RecomputeAll",
    "SubgraphCopyingStrategy": "OnEnterAndExit JustInTime",
    "SyntheticDataMode": "Off Zeros RandomNormal RandomUniform",
}
globals().update({name: IntEnum(name, members, start=0) for name, members in _MEMBERS.items()})
ignored("import popart", "its enumerations are numbers for PopART, which is not used here")
