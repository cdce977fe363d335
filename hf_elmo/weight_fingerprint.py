"""Fingerprints of weights, used to invalidate caches, and a cache of one result."""

from collections.abc import Callable, Collection, Iterable
from ctypes import string_at
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from .configuration_elmo import ElmoConfig

Result = TypeVar("Result")

END_BYTES = 16


class WeightFingerprint:
    """Identity, version and some values of weights, with the configuration and the autocast dtype.

    Two fingerprints are equal if nothing changed between them. PyTorch counts writes to a tensor,
    but not writes through `weight.data` (as when peft merges an adapter) or by fused optimisers.
    On a CPU, such a write is noticed if it changes the first or the last values of a weight. On a
    GPU, no value is read, because reading synchronises it. After a write through `weight.data`,
    call `ElmoModel.clear_caches` or `torch.autograd.graph.increment_version`.
    """

    def __init__(self, config: ElmoConfig, weights: list[Tensor]) -> None:
        device = weights[0].device.type
        has_autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = has_autocast and torch.get_autocast_dtype(device)
        self._weights = weights
        self._values = [w.detach() for w in weights]  # kept, so that addresses are not reused
        # Lists are copied, because `config.mix_weights` may be changed in place.
        settings = {name: list(x) if type(x) is list else x for name, x in vars(config).items()}
        self._state = dtype, settings, [(w.data_ptr(), w._version, read_ends(w)) for w in weights]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WeightFingerprint)
            and self._state == other._state
            and all(a is b for a, b in zip(self._weights, other._weights, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # its tensors may change

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()  # a copy equals nothing, and holds no weights


def read_ends(weight: Tensor) -> bytes:
    """Read the first and the last values of a weight on a CPU."""
    address, size = weight.data_ptr(), weight.nbytes
    end = weight.storage_offset() * weight.itemsize + size
    is_readable = weight.device.type == "cpu" and weight.is_contiguous()
    if not is_readable or end > weight.untyped_storage().nbytes():  # memory that was freed
        return b""
    length = min(END_BYTES, size)
    return string_at(address, length) + string_at(address + size - length, length)


def fingerprint_weights(config: ElmoConfig, weights: Iterable[Tensor]) -> WeightFingerprint | None:
    """Take the fingerprint of weights; None = changes could go unnoticed, so cache nothing.

    Only plain parameters have a fingerprint. Inference tensors have no version. The weights of
    parametrizations, pruning, `functional_call` and quantized subclasses are computed elsewhere.
    """
    weights = list(weights)  # none in a replica of DataParallel
    is_plain = all(type(w) is nn.Parameter and not w.is_inference() for w in weights)
    return WeightFingerprint(config, weights) if is_plain and weights else None


def fingerprint_module(
    config: ElmoConfig, module: nn.Module, classes: Collection[type[nn.Module]]
) -> WeightFingerprint | None:
    """Take the fingerprint of a module; None = its result may depend on more than its weights.

    Args:
        config: Configuration of the module.
        module: The module.
        classes: Allowed types of the module and its parts. Subclasses are not allowed, because
            adapters and parametrizations make subclasses with weights elsewhere. No part may have
            hooks or a replaced `forward`.
    """
    if nn.modules.module._has_any_global_hook():
        return None
    weights: list[Tensor | None] = []
    parts: list[Any] = [module]  # `parameters()` takes several times as long
    for part in parts:  # the loop body appends to it
        if (
            type(part) not in classes
            or part._forward_hooks
            or part._forward_pre_hooks
            or "forward" in vars(part)
        ):
            return None
        weights += part._parameters.values()
        parts += [child for child in part._modules.values() if child is not None]
    return fingerprint_weights(config, [weight for weight in weights if weight is not None])


class KeptResult(Generic[Result]):
    """Cache of one result, valid for one key; copies and pickles of the cache are empty.

    Threads may share a cache.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the result."""
        self._kept: tuple[Any, Result] | None = None

    def get(self, key: Any, compute: Callable[[], Result]) -> Result:
        """Return the result for a key; compute it only if it is not cached for that key."""
        kept = self._kept  # read once, because another thread may replace it
        if kept is None or kept[0] != key:
            self._kept = kept = key, compute()
        return kept[1]

    def __reduce__(self) -> tuple[type["KeptResult[Result]"], tuple[()]]:
        return KeptResult, ()
