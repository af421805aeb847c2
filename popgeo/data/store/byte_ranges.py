"""Where on disk the graphs of a store lie, so that they can be read before they are needed."""

from pathlib import Path

import numpy as np
import torch

from popgeo.data.columns import Columns
from popgeo.data.store.cut_blocks import bytes_of_graphs
from popgeo.data.store.mapped import file_of


class ByteRanges:
    """Where the graphs of a store on disk lie.

    Args:
        columns: A flat store; arrays that lie in memory are left out.
    """

    def __init__(self, columns: Columns) -> None:
        self.runs: list[tuple[Path, int, int, np.ndarray]] = []
        """Of each stretch of a file the byte at which graph 0 starts, the bytes of a row, and the row pointer."""
        for attribute in columns.attributes:
            file = file_of(attribute.values)
            if file is None:
                continue
            shape, dim = attribute.tensor.shape, attribute.dim
            row_bytes = torch.Size(shape[dim + 1 :]).numel() * attribute.tensor.element_size()
            pointer = columns.row_pointers[attribute.axis].numpy()
            for outer in range(torch.Size(shape[:dim]).numel()):
                start = outer * shape[dim] * row_bytes
                self.runs.append((file.path, start, row_bytes, pointer))

    def of(self, first: int, stop: int) -> list[tuple[Path, int, int]]:
        """File, first byte and number of bytes of each stretch that holds stored graphs `first` to `stop - 1`."""
        found = []
        for path, start, row_bytes, pointer in self.runs:
            begin, end = (start + row_bytes * int(pointer[graph]) for graph in (first, stop))
            if end > begin:
                found.append((path, begin, end - begin))
        return found


def is_on_disk(columns: Columns) -> bool:
    """Whether an array of the graphs is a mapped file."""
    return any(file_of(attribute.values) is not None for attribute in columns.attributes)


def mean_bytes(columns: Columns) -> float:
    """How many bytes a graph has on average."""
    return float(np.mean(bytes_of_graphs(columns))) if len(columns) else 0.0
