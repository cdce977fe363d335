"""Tensors in other programs' files: renamed, transposed, or joined in one variable."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count, takewhile

import numpy as np

from convert.layout import ConversionError, FloatArray, LazyTensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Arrangement:
    """Conversion between a stored variable and a tensor of the common layout.

    Attributes:
        shape: Computes the tensor's shape from the variable's shape.
        to_common: Computes the tensor from the variable's rows.
        to_stored: Computes the variable's rows from the tensor.
    """

    shape: Callable[[Shape], Shape]
    to_common: Callable[[FloatArray], FloatArray]
    to_stored: Callable[[FloatArray], FloatArray]


PLAIN = Arrangement(lambda shape: shape, lambda array: array, lambda array: array)
TABLE = Arrangement(  # adds row 0, the padding
    lambda shape: (shape[0] + 1, *shape[1:]),
    lambda array: np.insert(array, 0, 0, axis=0),
    lambda array: array[1:],
)


@dataclass(frozen=True)
class StoredTensor:
    """Location of a tensor of the common layout in the stored variables.

    Attributes:
        name: Name of the tensor in `ElmoModel`'s state dict.
        variable: Standard name of the variable.
        variable_shape: Shape of the variable.
        arrangement: Conversion to the common layout.
        rows: Rows of the variable that contain this tensor; None = all.
    """

    name: str
    variable: str
    variable_shape: Shape
    arrangement: Arrangement
    rows: tuple[int, int] | None = None


def gather_tensors(
    expected: Iterable[StoredTensor], variables: Mapping[str, LazyTensor], source: str
) -> dict[str, LazyTensor]:
    """Find the biLM's tensors among a file's variables.

    Args:
        expected: Expected tensors.
        variables: Variables of the file by their standard names.
        source: Name of the file, for messages.

    Raises:
        ConversionError: If a variable is missing, unexpected, or has another shape.
    """
    tensors, taken = {}, set()
    for stored in expected:
        variable = variables.get(stored.variable)
        if variable is None:
            raise ConversionError(
                f"{source}: expected a variable {stored.variable} of shape "
                f"{list(stored.variable_shape)}, found: "
                f"{', '.join(list(variables)[:10]) or 'none'}. "
                "Do the options belong to these weights?"
            )
        if variable.shape != stored.variable_shape:
            raise ConversionError(
                f"{variable.source}: expected shape {list(stored.variable_shape)} by the options, "
                f"got {list(variable.shape)}. Do the options belong to these weights?"
            )
        tensors[stored.name] = _rearrange_rows(stored, variable)
        taken.add(stored.variable)
    surplus = [variables[name].source for name in variables if name not in taken]
    if surplus:
        raise ConversionError(
            f"{source}: expected no variables but the {len(taken)} that the options ask for, found "
            f"{', '.join(surplus[:10])}. Do the options belong to these weights?"
        )
    return tensors


def _rearrange_rows(stored: StoredTensor, variable: LazyTensor) -> LazyTensor:
    first, last = stored.rows or (0, variable.shape[0])
    shape = stored.arrangement.shape((last - first, *variable.shape[1:]))

    def read_rows(start: int, stop: int) -> FloatArray:
        if stored.arrangement is PLAIN:
            return variable.read_rows(start, stop)
        if stored.arrangement is TABLE:  # shifted by the padding row
            rows = variable.read_rows(max(start - 1, 0), stop - 1)
            return TABLE.to_common(rows) if start == 0 else rows
        return stored.arrangement.to_common(variable.read_rows(first, last))[start:stop]

    return LazyTensor(variable.source, shape, read_rows)


def list_numbered(pattern: str, tensors: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    """List the tensors whose names differ only by a number, from 0."""
    found = takewhile(tensors.__contains__, map(pattern.format, count()))
    return [tensors[name] for name in found]
