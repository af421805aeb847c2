"""One notation for sizes: about three digits and a prefix of thousands, so that figures can be compared."""

import re

_BYTES = re.compile(r"\s*([0-9][0-9_,]*\.?[0-9]*)\s*([kMGT]?)(i?)B\s*", flags=re.IGNORECASE)


def quantity(number: float, unit: str) -> str:
    """Return a number with a prefix and its unit; a prefix is a factor of 1,000 for bytes, too.

    Example:
        >>> quantity(1234567, "B"), quantity(12, "B"), quantity(624 * 1024, "B")
        ('1.2 MB', '12 B', '639.0 kB')
        >>> quantity(999_970, "FLOP")
        '1.0 MFLOP'
    """
    for prefix, digits in (("", 0), ("k", 1), ("M", 1), ("G", 1)):
        if round(number, digits) < 1000:
            return f"{number:.{digits}f} {prefix}{unit}"
        number /= 1000
    return f"{number:,.1f} T{unit}"


def bytes_of(size: str | float) -> int:
    """Return a number of bytes from a text; a prefix is a factor of 1,000, or of 1,024 with an `i` behind it.

    Raises:
        ValueError: it is not a number of bytes.

    Example:
        >>> bytes_of("12 GB"), bytes_of("1.5kB"), bytes_of(4096)
        (12000000000, 1500, 4096)
    """
    nbytes = size
    if isinstance(nbytes, str):
        found = _BYTES.fullmatch(nbytes)
        if found is None:
            raise ValueError(f"The memory is {size!r}; pass a number of bytes, or a text such as '12 GB'.")
        number, prefix, binary = found.groups()
        power = "kmgt".find(prefix.lower()) + 1 if prefix else 0
        nbytes = float(re.sub("[_,]", "", number)) * (1024 if binary else 1000) ** power
    if isinstance(nbytes, bool) or not nbytes > 0:
        raise ValueError(f"The memory is {size!r}; it must be more than 0 bytes.")
    return int(nbytes)
