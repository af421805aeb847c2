"""Where programs set the level of PopART's own log, which there is not."""

from popgeo.compat.account import ignored
from popgeo.compat.poptorch.log import LEVELS


def setPopartLogLevel(level: str) -> None:
    """Accepts a level of PopART's log.

    Raises:
        ValueError: another name than PopTorch's.

    Example:
        >>> setPopartLogLevel("WARN")
    """
    if level not in LEVELS:
        raise ValueError(f"Level must be one of {', '.join(LEVELS)}; it is {level!r}.")
    ignored("_logging.setPopartLogLevel", "there is no PopART that would print anything")
