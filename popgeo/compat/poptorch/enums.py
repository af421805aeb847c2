"""The choices that PopTorch's functions take, with PopTorch's names and numbers."""

from enum import Enum as _Enum
from enum import IntEnum as _IntEnum


class OutputMode(_IntEnum):
    """Which of the steps of a call return their results; `Default` is `All` for inference and `Final` for training."""

    Final, EveryN, All, Sum, Default = range(5)


AnchorMode = OutputMode  # its name before PopTorch 2.4


class DataLoaderMode(_IntEnum):
    """Whether batches are loaded when they are asked for, ahead of time, or ahead of time in parts."""

    Sync, Async, AsyncRebatched = range(3)


class SharingStrategy(_IntEnum):
    """How a dataset reaches the process that loads it."""

    SharedMemory, FileSystem, Fork, ForkServer = range(4)


class ConnectionType(_IntEnum):
    """When a model takes hold of a machine; one that `Never` does can be compiled but not called."""

    Always, OnDemand, Never = range(3)


class HalfFloatCastingBehavior(_IntEnum):
    """What an operation of float16 and float32 computes in; PyTorch's rule holds here."""

    FloatDowncastToHalf, HalfUpcastToFloat, Default = range(3)


class ReductionType(_IntEnum):
    """How losses or gradients become one."""

    Sum, Mean, NoReduction = range(3)


class MeanReductionStrategy(_IntEnum):
    """When a mean of gradients is divided by their number."""

    Running, Post, PostAndLoss = range(3)


class SyncPattern(_IntEnum):
    """Which IPUs wait for each other."""

    Full, SinglePipeline, ReplicaAndLadder = range(3)


class MatMulSerializationMode(_Enum):
    """The dimension along which a matrix product is cut into parts."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(_IntEnum):
    """Where tensors stay between the phases of a phased execution."""

    AlwaysLive, OffChipAfterFwd, OffChipAfterFwdNoOverlap, OffChipAfterEachPhase = range(4)


class OverlapMode(_Enum):
    """How far ahead the host copies a tensor to the machine."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(_IntEnum):
    """How blocks become stages where the program names none."""

    SameAsIpu, AutoIncrement = range(2)


class MultiConvPlanType(_IntEnum):
    """How several convolutions run together."""

    Parallel, Serial = range(2)


class CommGroupType(_IntEnum):
    """Which replicas share a value: groups of neighbours, groups across, all of them, or none."""

    All, Consecutive, Orthogonal, NoGrouping = range(4)


class VariableRetrievalMode(_IntEnum):
    """Which of the values come back that groups of replicas hold."""

    OnePerGroup = 0
    AllReplicas = 2
