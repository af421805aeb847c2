"""Cycles of the vertices that gather and add rows, as in the estimators of poplibs; numbers or arrays of numbers.

Workers are served in turn, so that an instruction of one takes as many of the tile's cycles as there are workers.
"""

from typing import Any


def ceil_div(total: Any, parts: Any) -> Any:
    """Size of the largest of equal parts.

    Example:
        >>> ceil_div(7, 3)
        3
    """
    return -(-total // parts)


def slice_rows(lookups: Any, rows: Any, table_rows: Any, columns: Any, workers: int) -> Any:
    """A vertex that copies the rows of its block that a list of lookups names (`popops::MultiSlice`).

    The workers share the lookups. Each looks at all of its own, and copies those that fall into the block.

    Args:
        lookups: Lookups that the tile sees.
        rows: Rows of the table that the tile holds.
        table_rows: Rows among which the lookups are spread evenly.
        columns: Elements of a row that the tile holds.
        workers: Workers of a tile.

    Example:
        >>> slice_rows(lookups=60, rows=10, table_rows=100, columns=4, workers=6)
        750
    """
    mine = ceil_div(lookups, workers)
    hits = ceil_div(mine * rows, table_rows)
    return workers * (30 + hits * (19 + 2 * ceil_div(columns, 2)) + 8 * (mine - hits))


def add_rows(summands: Any, rows: Any, table_rows: Any, columns: Any, workers: int, operation: int = 3) -> Any:
    """A vertex that adds rows into the places that an index names (`popops::MultiUpdateAdd`).

    The workers share the rows of the table, so that none needs to wait. Each looks at the whole list of summands.

    Args:
        summands: Summands that the tile sees.
        rows: Rows of the table that the tile holds.
        table_rows: Rows among which the summands are spread evenly.
        columns: Elements of a row that the tile holds.
        workers: Workers of a tile.
        operation: Cycles of a worker per element beyond the first: 3 to add, 5 to take the larger.

    Example:
        >>> add_rows(summands=60, rows=12, table_rows=120, columns=4, workers=6)
        2118
    """
    hits = ceil_div(summands * ceil_div(rows, workers), table_rows)
    return workers * (38 + hits * (11 + operation * (columns - 1)) + 5 * (summands - hits))


def fill(elements: Any, vector: int) -> Any:
    """One worker writes the same number everywhere, a vector at each of its turns with the store port for itself.

    Example:
        >>> fill(elements=100, vector=2)
        73
    """
    return 23 + ceil_div(elements, vector)


def add_partials(elements: Any, partials: Any, vector: int) -> Any:
    """Adds vectors that lie one after the other, a vector at each cycle.

    Example:
        >>> add_partials(elements=10, partials=4, vector=2)
        37
    """
    return 17 + partials * ceil_div(elements, vector)
