"""Enumerations of PopART that old programs pass to `Options._Popart`."""

from enum import IntEnum

from popgeo.compat.account import ignored

AccumulateOuterFragmentSchedule = IntEnum(
    "AccumulateOuterFragmentSchedule", "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized", start=0
)
BatchSerializationBatchSchedule = IntEnum(
    "BatchSerializationBatchSchedule", "Scheduler Isomorphic OverlapOnIo OverlapOnCompute", start=0
)
RecomputationType = IntEnum("RecomputationType", "NoRecompute Standard NormOnly Pipeline RecomputeAll", start=0)
SubgraphCopyingStrategy = IntEnum("SubgraphCopyingStrategy", "OnEnterAndExit JustInTime", start=0)
SyntheticDataMode = IntEnum("SyntheticDataMode", "Off Zeros RandomNormal RandomUniform", start=0)
VirtualGraphMode = IntEnum("VirtualGraphMode", "Off Manual Auto ExecutionPhases", start=0)
ignored("import popart", "its enumerations are for PopART, which is not used here")
