"""Old import paths that work for one more minor version."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def redirect(old: str, new: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module that has moved.

    Args:
        old: The old name of the module.
        new: The new name of the module.
    """

    def get(name: str) -> Any:
        value = getattr(import_module(new), name)  # AttributeError if `new` lacks the name
        warnings.warn(
            f"{old}.{name} has moved: import it from {new}.", DeprecationWarning, stacklevel=2
        )
        return value

    return get
