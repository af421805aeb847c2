"""Where a program wants tensors to lie on the machine; everything lies in this computer's memory here."""

from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import OptionGroup, ignored, recorded

_WHERE = "tensors lie in this computer's memory; the modelled machine keeps them in its tiles"
_PARTS = "the modelled replicas keep a part each of the optimizer's state, and so do processes; results are the same"


class TensorLocationSettings(OptionGroup):
    """Where tensors of one kind lie.

    Example:
        >>> TensorLocationSettings().useOnChipStorage(False).toDict()
        {'onChip': 0}
    """

    def minElementsForOffChip(self, min_elements: int) -> "TensorLocationSettings":
        """Smaller tensors stay on the chip."""
        return self._count("minElementsForOffChip", min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> "TensorLocationSettings":
        """Smaller tensors are not divided over replicas."""
        return self._count("minElementsForReplicatedTensorSharding", min_elements)

    def useOnChipStorage(self, use: bool | None = True) -> "TensorLocationSettings":
        """On the chip or in the machine's outer memory; None leaves it open."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._switch("onChip", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> "TensorLocationSettings":
        """Divided over replicas."""
        return self._switch("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> "TensorLocationSettings":
        """Loaded through tiles kept for that."""
        return self._switch("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> "TensorLocationSettings":
        """Stored through tiles kept for that."""
        return self._switch("useIOTilesToStore", use)

    def _switch(self, option: str, use: bool) -> "TensorLocationSettings":
        check(isinstance(use, bool), f"{option} is {use!r}; it must be a bool.")
        self.createOrSet(**{option: int(use)})
        return self

    def _count(self, option: str, count: int) -> "TensorLocationSettings":
        check(isinstance(count, int), f"{option} is {count!r}; it must be an integer.")
        self.createOrSet(**{option: count})
        return self


class _TensorLocationOptions(OptionGroup):
    """Where activations, weights, optimizer state and accumulators lie."""

    def numIOTiles(self, num_tiles: int) -> "_TensorLocationOptions":
        """Tiles kept for transfers."""
        check(
            isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0,
            "numIOTiles must be an even number between 32 and 192.",
        )
        recorded("Options.TensorLocations.numIOTiles", "the modelled machine computes with so many tiles less")
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where activations lie."""
        return self._place("activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where weights lie."""
        return self._place("weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where the optimizer's state lies."""
        return self._place("optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> "_TensorLocationOptions":
        """Where accumulated gradients lie."""
        return self._place("accumulator", location)

    def _place(self, kind: str, location: TensorLocationSettings) -> "_TensorLocationOptions":
        check(
            isinstance(location, TensorLocationSettings),
            f"The location is {location!r}; it must be poptorch.TensorLocationSettings().",
        )
        asked = f"Options.TensorLocations.set{kind.capitalize()}Location"
        if kind == "optimizer" and location.toDict().get("useReplicatedTensorSharding"):
            recorded(f"{asked}(useReplicatedTensorSharding)", _PARTS)
        else:
            ignored(asked, _WHERE)
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        return self
