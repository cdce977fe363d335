"""Tensors as other programs store them: under another name, turned, or several in one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count, takewhile

import numpy as np

from convert.layout import ConversionError, FloatArray, LazyTensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Arrangement:
    """How the numbers of a variable are arranged in the common layout.

    Attributes:
        shape: Shape of the tensor for a shape of the variable's rows.
        to_common: The tensor for the variable's rows.
        to_stored: The variable's rows for the tensor.
    """

    shape: Callable[[Shape], Shape]
    to_common: Callable[[FloatArray], FloatArray]
    to_stored: Callable[[FloatArray], FloatArray]


PLAIN = Arrangement(lambda shape: shape, lambda array: array, lambda array: array)
TABLE = Arrangement(  # id 0 means "no token here"
    lambda shape: (shape[0] + 1, *shape[1:]),
    lambda array: np.insert(array, 0, 0, axis=0),
    lambda array: array[1:],
)


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor of the common layout lies in bilm-tf's variables.

    Attributes:
        name: Name of the tensor in `ElmoModel`'s state dict.
        variable: Standard name of the variable.
        variable_shape: Its shape.
        arrangement: How it is arranged.
        rows: The rows of the variable that hold this tensor; None = all.
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
        expected: The tensors that are expected.
        variables: The file's variables by their standard names.
        source: Name of the file, for messages.

    Raises:
        ConversionError: If a variable is missing, surplus or misshapen, naming it.
    """
    tensors, taken = {}, set()
    for stored in expected:
        variable = variables.get(stored.variable)
        if variable is None:
            raise ConversionError(
                f"{source}: expected a variable {stored.variable} of shape "
                f"{list(stored.variable_shape)}, found none; there are: "
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
        if stored.arrangement is TABLE:  # rows of a long table, one further down
            rows = variable.read_rows(max(start - 1, 0), stop - 1)
            return TABLE.to_common(rows) if start == 0 else rows
        return stored.arrangement.to_common(variable.read_rows(first, last))[start:stop]

    return LazyTensor(variable.source, shape, read_rows)


def list_numbered(pattern: str, tensors: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    """List the tensors whose names differ by a number, from 0."""
    found = takewhile(tensors.__contains__, map(pattern.format, count()))
    return [tensors[name] for name in found]
