"""One notation for sizes: about three digits and a prefix of thousands, so that figures can be compared."""


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
