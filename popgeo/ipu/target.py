"""The machine that a step is compiled for: its sizes and speeds, each with a public source."""

from dataclasses import dataclass, replace

import pandas as pd

from popgeo.quantity import quantity


@dataclass(frozen=True, kw_only=True)
class IpuTarget:
    """The sizes and speeds of one kind of IPU that memory and cycle estimates need.

    Sources: tiles, workers, memory, clock and peak rates are from the Graphcore IPU Programmer's Guide and the data
    sheets of IPU-M2000 and Bow-2000. Mk1 figures and all load, store and exchange widths are measured in Jia et al.,
    "Dissecting the Graphcore IPU Architecture via Microbenchmarking", arXiv:1912.03413. Multiply-accumulate rates are
    from the estimators of the open-source poplibs (github.com/graphcore/poplibs). A message of one word between two
    tiles takes 213 cycles on an idle machine and 264 on a busy one (arXiv:1912.03413, section 4), so one
    synchronisation counts 240. The launch of a compute set is the constant part of cycle counts in the notebooks of
    github.com/graphcore-research/tessellate-ipu. Links between IPUs and the latency of the host are from
    arXiv:1912.03413. There one IPU of the first generation received 6 gigabytes per second from the host, and two
    received 11.35: 72 % of the 15.75 of their bus (PCI Express 3, 16 lanes). For the second generation the same share
    of the 100 gigabit per second of its machine's network card is assumed (IPU-M2000). The host call is fitted to
    the published scaling of SchNet (github.com/graphcore-research/hydronet-gnn). Streaming memory is DDR4 that gives
    about 20 gigabytes per second to the four IPUs of a machine together (IPU-M2000 data sheet); the first generation
    has the host's memory instead.

    Attributes:
        name: Name of the machine in reports.
        num_tiles: Tiles of one IPU; each owns its memory and runs its own program.
        workers_per_tile: Hardware threads of a tile, served in turn, so that one gets every sixth cycle.
        memory_per_tile: Bytes: 638,976 are the 624 KiB of the maker's pages.
        clock: Cycles per second.
        vector_bytes: Bytes of one vector register: 2 float32 or 4 float16.
        load_bytes: Bytes that a tile can load per cycle.
        store_bytes: Bytes that a tile can store per cycle.
        float32_macs: Multiply-accumulates of a tile's matrix unit per cycle, float32.
        float16_macs: The same for float16.
        matrix_load_bytes: Bytes of weights that a tile loads into its matrix unit per cycle.
        exchange_bytes: Bytes that a tile can receive, and send, per cycle.
        exchange_pair_bytes: Bytes per cycle if both tiles of a pair receive the same data over both lanes.
        copy_bytes: Bytes that a tile can copy within its memory per cycle.
        copy_cycles: Fixed cycles of each such copy.
        sync_cycles: Cycles of one synchronisation and of the start of its exchange on one IPU.
        launch_cycles: Cycles of the start of a compute set, without its vertices.
        num_ipus: Number of IPUs that one replica spans.
        link_bytes_per_second: Rate between two IPUs of one board, in one direction.
        link_seconds: Latency of a message between two IPUs.
        host_bytes_per_second: Rate between the host and one IPU.
        host_seconds: Latency of a transfer between host and IPU.
        host_call_seconds: Fixed seconds of one call from the host.
        streaming_bytes_per_second: Rate between one IPU and the streaming memory of its machine while the other three
            IPUs use it, too.

    Raises:
        ValueError: a figure is not positive.

    Example:
        >>> IpuTarget.bow()
        IpuTarget(Bow: 1,472 tiles of 639.0 kB at 1.85 GHz)
    """

    name: str
    num_tiles: int
    workers_per_tile: int = 6
    memory_per_tile: int
    clock: float
    vector_bytes: int = 8
    load_bytes: int = 16
    store_bytes: int = 8
    float32_macs: int
    float16_macs: int
    matrix_load_bytes: int = 16
    exchange_bytes: int = 4
    exchange_pair_bytes: int = 8
    copy_bytes: int = 8
    copy_cycles: int = 288
    sync_cycles: int = 240
    launch_cycles: int = 82
    num_ipus: int = 1
    link_bytes_per_second: float = 55e9
    link_seconds: float = 0.55e-6
    host_bytes_per_second: float = 9e9
    host_seconds: float = 8.8e-6
    host_call_seconds: float = 1.3e-3
    streaming_bytes_per_second: float = 5e9

    def __post_init__(self) -> None:
        for field, figure in vars(self).items():
            if field != "name" and not figure > 0:
                raise ValueError(f"IpuTarget.{field} is {figure}; it must be positive.")

    @classmethod
    def gc2(cls) -> "IpuTarget":
        """Return the first generation: 1,216 tiles of 262.1 kB at 1.6 GHz."""
        return cls(
            name="GC2",
            num_tiles=1216,
            memory_per_tile=256 * 1024,
            clock=1.6e9,
            float32_macs=8,
            float16_macs=32,
            host_bytes_per_second=6e9,
            streaming_bytes_per_second=6e9,
        )

    @classmethod
    def gc200(cls) -> "IpuTarget":
        """Return the second generation: 1,472 tiles of 639.0 kB at 1.33 GHz."""
        return cls(
            name="GC200", num_tiles=1472, memory_per_tile=624 * 1024, clock=1.33e9, float32_macs=16, float16_macs=64
        )

    @classmethod
    def bow(cls) -> "IpuTarget":
        """Return the second generation on a faster clock: 1,472 tiles of 639.0 kB at 1.85 GHz."""
        return replace(cls.gc200(), name="Bow", clock=1.85e9)

    def __repr__(self) -> str:
        """Return name, tiles, memory and clock."""
        ipus = f"{self.num_ipus:,} x " if self.num_ipus > 1 else ""
        return f"{type(self).__name__}({self.name}: {ipus}{self.sizes})"

    def _repr_html_(self) -> str:
        shown = {name: f"{value:,.10g}" if name != "name" else value for name, value in vars(self).items()}
        return pd.Series(shown, name=type(self).__name__).to_frame().to_html()

    @property
    def sizes(self) -> str:
        """Tiles, memory of a tile and clock as text."""
        memory = quantity(self.memory_per_tile, "B")
        return f"{self.num_tiles:,} tiles of {memory} at {self.clock / 1e9:g} GHz"

    @property
    def all_tiles(self) -> int:
        """Tiles of all IPUs that one replica spans.

        Example:
            >>> IpuTarget.gc200().all_tiles
            1472
        """
        return self.num_ipus * self.num_tiles

    @property
    def memory(self) -> int:
        """Bytes of all tiles of all IPUs.

        Example:
            >>> IpuTarget.gc200().memory // 2**20
            897
        """
        return self.all_tiles * self.memory_per_tile

    def of_shards(self, num_shards: int) -> "tuple[IpuTarget, int, int]":
        """Return the machine of one IPU's share of a sharded model, the number of machines, and the shards on each.

        Raises:
            ValueError: the IPUs cannot share the shards evenly.

        Example:
            >>> IpuTarget.bow().of_shards(4)[1:]  # one IPU holds all four
            (1, 4)
        """
        few, many = sorted((num_shards, self.num_ipus))
        if many % few:
            raise ValueError(
                f"The model has {num_shards} shards, and IpuTarget.num_ipus is {self.num_ipus}. Choose numbers of "
                f"which one divides the other, such as {num_shards} IPUs."
            )
        return replace(self, num_ipus=self.num_ipus // few), few, num_shards // few
