"""The constants that turn formulas into cycles measured on a Bow IPU."""

from dataclasses import dataclass, fields

from popgeo.ipu.cost.splits import MEMORY_SHARE
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The fitted constants of each family of operations; the calibrated cycles of a step are linear in each.

    `scripts/calibrate_cost_model.py` fits them to measurements published for a Bow IPU
    (github.com/graphcore-research/hydronet-gnn for gather, scatter-add and the SchNet block; arXiv:2303.16999 for dense
    products). `..._fixed` are cycles per operation: launches, synchronisations and control that its program needs
    beyond the plan's own. `..._layout` are cycles per element (for element-wise operations, per byte) on a
    tile, if results or arguments are rearranged.

    Attributes:
        gather_fixed: Cycles of any gather.
        gather_exchange: Factor on the cycles of its exchanges.
        gather_vertex: Factor on the cycles of its vertices.
        gather_result_layout: Cycles per element of the result that a tile holds.
        gather_two_stage: Cycles of a second stage that selects the right block, if the table's rows are split.
        gather_uneven: Further cycles if these blocks are unequal, since rows must first be moved between tiles.
        scatter_fixed: Cycles of any scatter-add.
        scatter_exchange: Factor on the cycles of its exchanges.
        scatter_vertex: Factor on the cycles of its vertices.
        scatter_result_layout: Cycles per element of the result that a tile holds.
        scatter_source_layout: Cycles per element of the summands that a tile holds.
        scatter_partials: Cycles of the sum of partial sums, if the summands are split.
        matmul_fixed: Cycles of any dense product, float16 or float32.
        matmul_move: Factor on the cycles that move the matrices to the tiles and arrange them for the matrix unit.
        matmul_amp: Factor on the cycles of the matrix unit.
        matmul_reduce: Factor on the cycles that exchange and add partial sums.
        elementwise_fixed: Cycles of any element-wise operation, beyond the launch.
        elementwise_layout: Cycles per byte of a tile's rows that an element-wise operation rearranges into blocks.
        elementwise_into_product: Cycles per byte of a tile's rows that a product rearranges into blocks.
    """

    gather_fixed: float = 1350.0
    gather_exchange: float = 1.221
    gather_vertex: float = 1.077
    gather_result_layout: float = 1.431
    gather_two_stage: float = 1660.0
    gather_uneven: float = 2785.0
    scatter_fixed: float = 1905.0
    scatter_exchange: float = 3.434
    scatter_vertex: float = 0.7553
    scatter_result_layout: float = 6.146
    scatter_source_layout: float = 3.083
    scatter_partials: float = 404.6
    matmul_fixed: float = 1060.0
    matmul_move: float = 1.111
    matmul_amp: float = 0.9588
    matmul_reduce: float = 0.5457
    elementwise_fixed: float = 716.2
    elementwise_layout: float = 4.712
    elementwise_into_product: float = 2.927


BOW_SDK3 = Calibration()
"""Bow, SDK 3.1 to 3.2."""

CONSTANTS = tuple(field.name for field in fields(Calibration))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that a planner plans for, with its fitted constants.

    Attributes:
        target: The sizes and speeds.
        calibration: The fitted constants.
        matmul_proportion: Share of a tile's memory that a dense product may take while it runs; PopTorch's
            `setAvailableMemoryProportion`. With a smaller share it is computed in more parts, one after the other.
    """

    target: IpuTarget
    calibration: Calibration = BOW_SDK3
    matmul_proportion: float = MEMORY_SHARE

    @property
    def num_tiles(self) -> int:
        """Tiles of all IPUs that one replica spans.

        Example:
            >>> Machine(target=IpuTarget.bow()).num_tiles
            1472
        """
        return self.target.all_tiles
