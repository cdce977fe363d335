"""Find and check the files of a stored model; errors name the model, the file and the tensor."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from .configuration_elmo import SPECIAL_CHAR_IDS, ElmoConfig, refuse_damage

OPTIONAL_FILE = {"_raise_exceptions_for_missing_entries": False}  # None if missing
WEIGHTS = "model*.safetensors"  # one file, or shards
PICKLED_WEIGHTS = "pytorch_model*.bin"
BILM_PREFIXES = ("token_encoder.", "forward_lstm.", "backward_lstm.")
FLOATING = {"F64", "F32", "F16", "BF16"} | {
    str(dtype) for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}  # names of floating-point dtypes in safetensors and in PyTorch
# Options of `from_pretrained` for all files of a model.
HUB_OPTIONS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
)


class MisshapenError(RuntimeError, ValueError):
    """Error for a tensor whose shape is not as configured; transformers raises RuntimeError."""


def check_encoding(name: str | PathLike[str]) -> None:
    """Refuse the name of a model's file or folder if it is not UTF-8.

    Raises:
        OSError: If the name is not UTF-8.
    """
    try:
        str(name).encode()
    except UnicodeEncodeError as error:  # safetensors and ONNX cannot open such files
        raise OSError(
            f"Expected a model with a name in UTF-8, got {str(name)!r}. Choose another name."
        ) from error


def check_name(name: str | PathLike[str]) -> None:
    """Refuse a misspelt folder, which transformers would take for a name on the Hub.

    Raises:
        OSError: If the name is neither a folder nor of the form owner/name.
    """
    path = Path(name)
    check_encoding(name)
    if not path.exists() and (len(path.parts) != 2 or path.is_absolute()):
        raise OSError(
            "Expected a model's folder, or its name on the Hugging Face Hub (owner/name), got "
            f"{str(name)!r}: there is no such folder. The model that ships with this package is "
            'loaded by the name hf_elmo.bundled.resolve_name("elmo-mini-en").'
        )


def load_config(name: str, loader: Any = AutoConfig, **hub: Any) -> Any:
    """Load a model's configuration; unlike those of transformers, all errors name the model.

    Args:
        name: A folder, or a name on the Hub.
        loader: Class that loads it: `AutoConfig` or a class of configurations.
        **hub: Options named in `HUB_OPTIONS`.

    Raises:
        OSError: If there is no such model.
        ValueError: If the configuration is not one of `loader`, or is damaged, or if the model
            needs code of its own, which is never executed.
        huggingface_hub.errors.StrictDataclassError: If a setting is out of its range.
    """
    check_name(name)
    try:
        with refuse_damage(name):
            return loader.from_pretrained(name, trust_remote_code=False, **hub)
    except OSError as error:
        raise OSError(f"Could not load the model {name!r}: {error}") from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"Expected a model of this package, got {name!r}, which needs code of its own."
        ) from error


@contextmanager
def explain_damaged_weights(name: str) -> Iterator[None]:
    """Raise a `ValueError` that names the model, instead of the error of a damaged file."""
    try:
        yield
    except (SafetensorError, torch.serialization.pickle.UnpicklingError) as error:  # type: ignore[attr-defined]  # hf_elmo imports no pickle
        raise ValueError(
            f"The weights of {name!r} are damaged ({str(error).splitlines()[0]}). Copy or fetch "
            "them again."
        ) from error


def check_tokenizer(name: str | PathLike[str], config: ElmoConfig, **hub: Any) -> None:
    """Check that a model's tokenizer, if any, has the special ids and word length of its biLM.

    Args:
        name: A folder, or a name on the Hub.
        config: Configuration of the biLM.
        **hub: Options named in `HUB_OPTIONS`.

    Raises:
        ValueError: If a setting of the tokenizer differs from the biLM's.
    """
    path = cached_file(name, "tokenizer_config.json", **OPTIONAL_FILE, **hub)
    if path is None or not config.char_embedding_size:
        return
    tokenizer = json.loads(Path(path).read_text(encoding="utf-8"))
    for field in ("max_characters_per_token", *SPECIAL_CHAR_IDS):
        expected, got = getattr(config, field), tokenizer.get(field, getattr(config, field))
        if type(got) is not int or got != expected:
            raise ValueError(
                f"Expected {field} {expected} in tokenizer_config.json of {str(name)!r}, as in its "
                f"config.json, got {got!r}."
            )


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` that names the first weight that is not finite floating-point."""
    for name, weight in weights.items():
        if str(weight.dtype) not in FLOATING:
            raise ValueError(f"Expected floating-point weights, got {weight.dtype} in {name}.")
        if weight.is_meta or weight.sum().isfinite():  # the sum alone is several times faster
            continue
        is_left_out = weight.isneginf() if "scalar_mix" in name else False  # layers of a mix
        if not (weight.isfinite() | is_left_out).all():
            raise ValueError(f"Expected finite weights, got NaN or infinity in {name}.")


def find_weights(name: str, **hub: Any) -> list[Path]:
    """Find the weight files in a folder; for a model on the Hub, find only an unsharded file."""
    folder = Path(name) / (hub.get("subfolder") or "")
    if folder.is_dir():
        files = sorted(file for file in folder.glob(WEIGHTS) if file.is_file())
        return files or sorted(folder.glob(PICKLED_WEIGHTS))
    path = cached_file(name, SAFE_WEIGHTS_NAME, **OPTIONAL_FILE, **hub)
    return [] if path is None else [Path(path)]


def check_dtypes(file: Path, known: Collection[str]) -> None:
    """Refuse model weights that are not floating-point, because PyTorch would cast them."""
    if file.suffix == ".bin":
        stored = torch.load(file, map_location="meta", weights_only=True)
        dtypes = {name: str(weight.dtype) for name, weight in stored.items()}
    else:
        with safe_open(file, framework="pt") as tensors:
            dtypes = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118 (no mapping)
    for name, dtype in dtypes.items():
        if dtype not in FLOATING and name.removeprefix("elmo.") in known:
            raise ValueError(f"Expected floating-point weights in {file}, got {dtype} in {name}.")


def _is_of_bilm(key: str) -> bool:
    return key.removeprefix("elmo.").startswith(BILM_PREFIXES)


def check_keys(report: dict[str, Any], name: str) -> None:
    """Refuse a checkpoint with missing or surplus tensors of the biLM."""
    for problem, keys in (
        ("misses", report["missing_keys"]),
        ("has surplus", report["unexpected_keys"]),
    ):
        wrong = sorted(filter(_is_of_bilm, keys))
        if wrong:
            raise ValueError(
                f"The checkpoint {name!r} {problem} tensors: {', '.join(wrong)}. Its weights do "
                "not fit its config.json."
            )


def check_shapes(report: dict[str, Any], name: str, allows_misshapen_heads: bool) -> None:
    """Refuse a checkpoint with a tensor whose shape differs from its configuration."""
    wrong = [
        f"{key} {tuple(got)} for {tuple(want)}"
        for key, got, want in sorted(report["mismatched_keys"])
        if _is_of_bilm(key) or not allows_misshapen_heads
    ]
    if wrong:
        raise MisshapenError(
            f"The checkpoint {name!r} has misshapen tensors: {', '.join(wrong)}. Its weights do "
            "not fit its config.json. (ignore_mismatched_sizes=True draws a new head.)"
        )
