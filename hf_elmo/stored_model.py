"""Names and weights of stored models."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

OPTIONAL_FILE = {"_raise_exceptions_for_missing_entries": False}  # None if missing
BILM_PREFIXES = ("token_encoder.", "forward_lstm.", "backward_lstm.")
# Options of `from_pretrained` for all files of a model.
HUB_OPTIONS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
)


def is_of_bilm(name: str) -> bool:
    """Return whether a tensor, by its name in a biLM or in a head, belongs to the biLM."""
    return name.removeprefix("elmo.").startswith(BILM_PREFIXES)


def check_name(name: str | PathLike[str]) -> None:
    """Refuse a misspelt folder, which transformers would take for a name on the Hub.

    Raises:
        OSError: If the name is neither a folder nor of the form owner/name.
    """
    path = Path(name)
    if not path.exists() and (len(path.parts) != 2 or path.is_absolute()):
        raise OSError(
            "Expected a model's folder, or its name on the Hugging Face Hub (owner/name), got "
            f"{str(name)!r}: there is no such folder."
        )


def load_config(name: str, loader: Any = AutoConfig, **hub: Any) -> Any:
    """Load a model's configuration.

    Args:
        name: A folder, or a name on the Hub.
        loader: Class that loads it: `AutoConfig` or a class of configurations.
        **hub: Options named in `HUB_OPTIONS`.

    Raises:
        OSError: If there is no such model.
    """
    check_name(name)
    return loader.from_pretrained(name, trust_remote_code=False, **hub)


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` that names the first weight that is not finite floating-point."""
    for name, weight in weights.items():
        if not weight.is_floating_point():
            raise ValueError(f"Expected floating-point weights, got {weight.dtype} in {name}.")
        if weight.is_meta or weight.sum().isfinite():  # the sum alone is several times faster
            continue
        is_left_out = weight.isneginf() if "scalar_mix" in name else False  # layers of a mix
        if not (weight.isfinite() | is_left_out).all():
            raise ValueError(f"Expected finite weights, got NaN or infinity in {name}.")
