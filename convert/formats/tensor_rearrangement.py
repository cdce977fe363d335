"""Tensors in files of other ELMo programs, which rename, transpose or join them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from typing import NamedTuple

import numpy as np

from convert.layout import ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig
from hf_elmo.modeling_elmo import list_shapes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Arrangement:
    """Conversion between a stored variable and a tensor of the common layout.

    Attributes:
        stored_shape: Computes the tensor's shape in the variable from that in the common layout.
        to_common: Computes the tensor from its rows in the variable.
        to_stored: Computes these rows from the tensor.
    """

    stored_shape: Callable[[Shape], Shape]
    to_common: Callable[[FloatArray], FloatArray]
    to_stored: Callable[[FloatArray], FloatArray]


PLAIN = Arrangement(lambda shape: shape, lambda array: array, lambda array: array)
TABLE = Arrangement(  # adds row 0, the padding
    lambda shape: (shape[0] - 1, *shape[1:]),
    lambda array: np.insert(array, 0, 0, axis=0),
    lambda array: array[1:],
)


def reorder_gates(array: FloatArray, order: list[int]) -> FloatArray:
    """Reorder the four gates along the first axis."""
    return array.reshape(4, -1, *array.shape[1:])[order].reshape(array.shape)


class Rule(NamedTuple):
    """Rule that locates tensors of the common layout in another ELMo program's files.

    Attributes:
        name: Regular expression for names in `ElmoModel`'s state dict.
        variable: Name of the stored variable; each {} is replaced by a group of `name`.
        arrangement: Conversion between the variable and the common layout.
        half: The tensor is this half of the variable's rows, 0 or 1; None = all rows.
    """

    name: str
    variable: str
    arrangement: Arrangement
    half: int | None = None


class StoredTensor(NamedTuple):
    """Tensor of the common layout: its name and shape, and its place in a stored variable."""

    name: str
    shape: Shape
    variable: str
    arrangement: Arrangement
    half: int | None = None

    @property
    def rows(self) -> tuple[int, int]:
        """First row of the tensor in the variable, and the row after its last."""
        number, half = self.arrangement.stored_shape(self.shape)[0], self.half or 0
        return number * half, number * (half + 1)

    @property
    def variable_shape(self) -> Shape:
        """Shape of the variable."""
        number, *others = self.arrangement.stored_shape(self.shape)
        return (number if self.half is None else 2 * number, *others)


def list_stored_tensors(config: ElmoConfig, rules: Iterable[Rule]) -> Iterator[StoredTensor]:
    """List all tensors of the biLM with their location in a program's variables."""
    for name, shape in list_shapes(config).items():
        for rule in rules:
            if match := re.fullmatch(rule.name, name):
                variable = rule.variable.format(*match.groups())
                yield StoredTensor(name, shape, variable, rule.arrangement, rule.half)


def gather_tensors(
    expected: Iterable[StoredTensor], variables: Mapping[str, LazyTensor], source: str
) -> dict[str, LazyTensor]:
    """Find the expected tensors of a biLM among the variables of a file.

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
    first, last = stored.rows

    def read_rows(start: int, stop: int) -> FloatArray:
        if stored.arrangement is PLAIN:
            return variable.read_rows(first + start, first + stop)
        if stored.arrangement is TABLE:  # shifted by the padding row
            rows = variable.read_rows(max(start - 1, 0), stop - 1)
            return TABLE.to_common(rows) if start == 0 else rows
        return stored.arrangement.to_common(variable.read_rows(first, last))[start:stop]

    return LazyTensor(variable.source, stored.shape, read_rows)


def list_numbered(pattern: str, tensors: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    """List the tensors named by `pattern` with 0, 1, 2, ..., up to the first missing number."""
    found = takewhile(tensors.__contains__, map(pattern.format, count()))
    return [tensors[name] for name in found]
