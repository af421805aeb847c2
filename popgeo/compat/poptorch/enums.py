"""The choices that PopTorch's functions take, with PopTorch's names and numbers."""

from enum import Enum, IntEnum


class OutputMode(IntEnum):
    """Which of the steps of a call return their results; `Default` is `All` for inference and `Final` for training."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


AnchorMode = OutputMode  # its name before PopTorch 2.4


class DataLoaderMode(IntEnum):
    """Whether batches are loaded when they are asked for, ahead of time, or ahead of time in parts."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(IntEnum):
    """How a dataset reaches the process that loads it."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class ConnectionType(IntEnum):
    """When a model takes hold of a machine; one that `Never` does can be compiled but not called."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(IntEnum):
    """What an operation of float16 and float32 computes in; PyTorch's rule holds here."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(IntEnum):
    """How losses or gradients become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum):
    """When a mean of gradients is divided by their number."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class SyncPattern(IntEnum):
    """Which IPUs wait for each other."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MatMulSerializationMode(Enum):
    """The dimension along which a matrix product is cut into parts."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(IntEnum):
    """Where tensors stay between the phases of a phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(Enum):
    """How far ahead the host copies a tensor to the machine."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(IntEnum):
    """How blocks become stages where the program names none."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(IntEnum):
    """How several convolutions run together."""

    Parallel = 0
    Serial = 1


class CommGroupType(IntEnum):
    """Which replicas share a value: groups of neighbours, groups across, all of them, or none."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which of the values come back that groups of replicas hold."""

    OnePerGroup = 0
    AllReplicas = 2
