"""Where a program wants tensors to lie on the machine; everything lies in this computer's memory here."""

from typing import Any, ClassVar

from popgeo.compat.account import ignored, recorded
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import RECORDED, OptionGroup, setter, zero_or_one

_WHERE = "tensors lie in this computer's memory; the modelled machine keeps them in its tiles"
_PARTS = "the modelled replicas keep a part each of the optimizer's state, and so do processes; results are the same"


class TensorLocationSettings(OptionGroup):
    """Where tensors of one kind lie.

    Example:
        >>> TensorLocationSettings().useOnChipStorage(False).toDict()
        {'onChip': 0}
    """

    def useOnChipStorage(self, use: bool | None = True) -> "TensorLocationSettings":
        """On the chip or in the machine's outer memory; None leaves it open."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=zero_or_one("useOnChipStorage", use))
        return self


def _location(name: str, location: Any) -> dict[str, Any]:
    """What settings say, once the account has said what becomes of them."""
    known = isinstance(location, TensorLocationSettings)
    check(known, f"The location is {location!r}; it must be poptorch.TensorLocationSettings().")
    told: dict[str, Any] = location.toDict()
    if name == "setOptimizerLocation" and told.get("useReplicatedTensorSharding"):
        recorded(f"Options.TensorLocations.{name}(useReplicatedTensorSharding)", _PARTS)
    else:
        ignored(f"Options.TensorLocations.{name}", _WHERE)
    return told


class TensorLocationOptions(OptionGroup):
    """Where activations, weights, optimizer state and accumulators lie."""

    _asked = "Options.TensorLocations"
    _kinds: ClassVar = {"location": (TensorLocationSettings, _location)}

    @setter("numIOTiles", RECORDED, "the modelled machine computes with so many tiles less")
    def numIOTiles(self, num_tiles: int) -> Any:
        """Tiles kept for transfers."""
        is_taken = isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0
        check(is_taken, "numIOTiles must be an even number between 32 and 192.")
