"""How sizes are written, everywhere: three digits and a prefix of thousands, so that two figures can be compared."""


def quantity(number: float, unit: str) -> str:
    """A number in words; prefixes are thousands for bytes, too, as in the rates of links and disks.

    Example:
        >>> quantity(1234567, "B"), quantity(12, "B"), quantity(624 * 1024, "B")
        ('1.2 MB', '12 B', '639.0 kB')
        >>> quantity(999_970, "FLOP")
        '1.0 MFLOP'
    """
    if number < 999.5:
        return f"{number:.0f} {unit}"
    for prefix in "kMG":
        number /= 1000
        if number < 999.95:
            return f"{number:.1f} {prefix}{unit}"
    return f"{number / 1000:,.1f} T{unit}"
