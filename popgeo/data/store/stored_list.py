"""Values that are not tensors, one per graph, stored on disk as JSON and read at each access."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.data.store.mapped import MappedFilesMixin, mapped_file


class StoredList(MappedFilesMixin, Sequence[Any]):
    """A list of values, such as names, that reads only the accessed values.

    Args:
        text: The values as JSON, one after the other. uint8 [number of bytes]
        ends: The start of each value, and the end of the last. int64 [num_values + 1]
    """

    def __init__(self, text: Tensor, ends: Tensor) -> None:
        self.text, self.ends = text, ends

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int | slice) -> Any:
        """Return one value, or the values of a slice as a list."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"Value {index} was asked for; there are {len(self)}.")
        start, stop = self.ends[index % len(self)], self.ends[index % len(self) + 1]
        try:
            return json.loads(self.text[int(start) : int(stop)].numpy().tobytes())
        except (ValueError, RecursionError) as error:
            file = mapped_file(self.text)
            raise ValueError(
                f"Value {index} of {'a list' if file is None else file.reference.path} is not valid JSON: "
                f"{error}. Write the store again."
            ) from error


def as_bytes(values: Iterable[Any], name: str) -> tuple[Tensor, Tensor]:
    """Return values as JSON: the text of all values, uint8, and the length of each, int64.

    Raises:
        ValueError: a value would be different after reading.

    Example:
        >>> as_bytes(["C", None], "name")
        (tensor([ 34,  67,  34, 110, 117, 108, 108], dtype=torch.uint8), tensor([3, 4]))
    """
    lines = []
    for value in values:
        try:
            line = json.dumps(value, ensure_ascii=False, allow_nan=False)
            comes_back = json.loads(line) == value
        except (TypeError, ValueError, RuntimeError):
            comes_back = False
        if not comes_back:
            raise ValueError(
                f"Attribute {name!r} holds {value!r} of type {type(value).__name__}, which cannot be stored on disk. "
                f"Numbers, strings, None, and lists and dictionaries of these can be. Pass exclude_keys=[{name!r}]."
            )
        lines.append(line.encode())
    text = torch.frombuffer(bytearray(b"".join(lines)), dtype=torch.uint8) if lines else torch.empty(0).byte()
    return text, torch.tensor([len(line) for line in lines], dtype=torch.int64)
