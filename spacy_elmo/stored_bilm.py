"""The biLM of a pipeline: loaded on first use, saved with its weights or only their source."""

import copy
import hashlib
import os
import re
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, cast

import srsly
import torch
from thinc.api import Optimizer, Shim, get_torch_default_device, torch2xp, xp2torch
from thinc.compat import has_cupy
from torch import Tensor
from torch.nn import Parameter

from .component_parts import pack_folder, unpack_folder

if TYPE_CHECKING:  # spaCy imports every factory for every pipeline; transformers is slow to import
    from hf_elmo import ElmoModel, ElmoTokenizer

SOURCE_FILE = "source.json"  # instead of weights that are not stored
OWN_FILES = re.compile(
    r"(config|tokenizer_config|source)\.json|model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?"
)
WEIGHTS_FILE = "model.safetensors"
# By process: threads that share a pipeline load the weights once. At a fork, a thread of the parent
# may hold the lock of the parent.
LOADING: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
DIGEST_PREFIX = "sha256:"  # a folder has no commit: its revision is a digest
_KNOWN_PROCESSES = {os.getpid()}  # the importing process, and its forks that have run a model

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]


class Bilm(NamedTuple):
    """A biLM and its tokenizer."""

    model: "ElmoModel"
    tokenizer: "ElmoTokenizer"


def _copy_others(source: Path, target: Path) -> None:
    """Copy the files and folders that `ElmoShim.write` has not made."""
    for path in source.iterdir():
        copied = target / path.name
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, copied, symlinks=True)
        elif not OWN_FILES.fullmatch(path.name) and not copied.exists():
            shutil.copy2(path, copied, follow_symlinks=False)


def _remove(path: Path) -> None:
    """Remove a folder, or a link to one, if it exists."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


class ElmoShim(Shim):
    """Hold a biLM for a thinc model.

    Args:
        name: Folder or Hub name of the model, or name of the bundled model.
        revision: Branch, tag or commit on the Hub; None = branch `main`.
        dtype: Data type of the weights; None = the model's own.
        quantization: `"int8"` or None; see `choose_backend` of `hf_elmo`.
        backend: Backend of inference; see `choose_backend`.

    Attributes:
        device: Device of the biLM.
        store_weights: Save the weights; otherwise save only their source (name and revision).
        has_learned: Whether the weights may have changed since pretraining: in training since they
            were loaded, or before the pipeline was saved.
    """

    def __init__(
        self,
        name: str,
        revision: str | None = None,
        dtype: Dtype | None = None,
        quantization: Literal["int8"] | None = None,
        backend: Literal["auto", "torch", "onnx"] = "auto",
    ) -> None:
        super().__init__(None)
        self.name = name
        self.revision = revision
        self.dtype = dtype
        self.quantization = quantization
        self.backend = backend
        self.device: torch.device = get_torch_default_device()
        self.store_weights = True
        self.has_learned = False
        self._bilm: Bilm | None = None
        self._source: dict[str, str] | None = None  # source of the weights in memory

    def load(self) -> Bilm:
        """Return the biLM; load it on first use.

        Raises:
            OSError: If the model does not exist.
            ValueError: If it is not an ELMo.
        """
        if self._bilm is None:
            with LOADING[os.getpid()]:
                if self._bilm is None:
                    bilm = self._load_pretrained(self.name, self.revision)
                    self._source = None if self.store_weights else self._find_source(bilm)
                    self._bilm = bilm
        limit_fork_threads()
        return self._bilm

    def write(self, folder: Path) -> None:
        """Write the biLM like `save_pretrained`, or only its source; replace the folder at the end.

        Other files in the folder, such as a README, are kept.

        Raises:
            ValueError: If only the source is to be written, but it is unknown, has changed, or is
                the folder itself.
        """
        bilm = self.load()
        source = None if self.store_weights else self._check_source(folder)
        partial, old = (folder.with_name(f".{folder.name}{end}") for end in (".partial", ".old"))
        # A run was killed between the renamings below.
        if old.is_dir() and not os.path.lexists(folder):
            old.rename(folder)
        for leftover in (partial, old):
            _remove(leftover)
        partial.mkdir(parents=True)
        if source is None:
            with no_progress_bars():
                bilm.model.save_pretrained(partial)
                bilm.tokenizer.save_pretrained(partial)
        else:
            srsly.write_json(partial / SOURCE_FILE, source)
        if folder.is_dir():
            _copy_others(folder, partial)
            folder.rename(old)
        elif folder.is_symlink():  # to a folder that does not exist
            folder.unlink()
        partial.rename(folder)
        _remove(old)

    def read(self, folder: Path) -> None:
        """Read the biLM from a folder that `write` made.

        If the weights were not stored, they are read from their recorded source. If the source is a
        folder that is missing, they are read from `self.name`. The files of a source folder must
        not have changed since the pipeline was saved.

        Raises:
            OSError: If the folder holds no model.
            ValueError: If the weights, the configuration or the tokenizer have changed since then.
        """
        if not folder.is_dir():
            raise FileNotFoundError(
                f"Found no ELMo model in {folder}: this pipeline was not saved to its end, perhaps "
                "because the program was killed, or files have been removed since. Save it once "
                "more, or load another, such as the model-best beside a model-last."
            )
        if not (folder / SOURCE_FILE).is_file():
            self._bilm, self._source = self._load_pretrained(str(folder), None), None
            self.has_learned = True
            return
        source = srsly.read_json(folder / SOURCE_FILE)
        name, revision = source["name"], source["revision"]
        if not revision.startswith(DIGEST_PREFIX):
            self.name, self.revision = name, revision
            self._bilm, self._source = self._load_pretrained(name, revision), source
            return
        self.name = name if Path(_resolve_name(name)).is_dir() else self.name
        bilm = self._load_pretrained(self.name, None)
        found = self._find_source(bilm)
        for key in ("revision", "config", "tokenizer"):
            if found[key] != source.get(key, found[key]):  # older versions lack the last two
                raise ValueError(
                    f"The model in {self.name!r} has changed since this pipeline was saved with "
                    f"store_weights = false: expected {key} {source[key]}, got {found[key]}."
                )
        self._bilm, self._source = bilm, found

    def _load_pretrained(self, name: str, revision: str | None) -> Bilm:
        from hf_elmo import ElmoModel, ElmoTokenizer

        source = _resolve_name(name)
        _check_is_elmo(name, source, revision)
        options = {} if self.dtype is None else {"dtype": getattr(torch, self.dtype)}
        # A download may show its progress.
        with no_progress_bars() if Path(source).is_dir() else nullcontext():
            model = ElmoModel.from_pretrained(source, revision=revision or "main", **options)
            tokenizer = ElmoTokenizer.from_pretrained(source, revision=revision or "main")
        try:
            model.to(self.device)
        except (AssertionError, RuntimeError) as error:  # torch, if the device is missing
            raise ValueError(
                f"Expected a device that PyTorch can use here, got {self.device}: {error}. Set "
                "device of the 'elmo' component to \"cpu\" or null."
            ) from error
        return Bilm(model, tokenizer)

    def _find_source(self, bilm: Bilm) -> dict[str, str]:
        if Path(_resolve_name(self.name)).is_dir():
            name = str(Path(self.name).resolve()) if Path(self.name).is_dir() else self.name
            config, tokenizer = bilm.model.config.checksum(), bilm.tokenizer.checksum()
            source = {"name": name, "revision": _digest_weights(self.name)}
            return {**source, "config": str(config), "tokenizer": str(tokenizer)}
        return {"name": self.name, "revision": str(bilm.model.config._commit_hash)}

    def _check_source(self, folder: Path) -> dict[str, str]:
        """Return the source of the weights; check it, and that writing a folder keeps it."""
        if self._source is None:
            raise ValueError(
                "Expected store_weights = true: this biLM was read from a saved pipeline, and "
                "the source of its weights, which may be trained, is unknown."
            )
        name, revision = self._source["name"], self._source["revision"]
        if revision.startswith(DIGEST_PREFIX) and _digest_weights(name) != revision:
            raise ValueError(
                f"The model in {name!r} has changed, or is gone, since it was read: set "
                "store_weights = true, so that the model in memory is saved."
            )
        if Path(name).resolve() == folder.resolve():
            raise ValueError(
                f"Expected store_weights = true, or another folder to save to: {str(folder)!r} has "
                "the weights themselves, and only their source would replace them."
            )
        return self._source

    def to_bytes(self) -> bytes:
        """Return the files of `write` as bytes."""
        return pack_folder(self.write)

    def from_bytes(self, data: bytes) -> Self:
        """Read the bytes of `to_bytes`."""
        unpack_folder(data, self.read)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_bilm": None}
        return {**state, "files": self.to_bytes() if self._bilm else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("files")
        self.__dict__.update(state)
        if files is not None:
            self.from_bytes(files)
            self.has_learned = state["has_learned"]

    def copy(self) -> "ElmoShim":
        """Copy the biLM with its weights; the copy has its own id."""
        copied = ElmoShim(self.name, self.revision, self.dtype, self.quantization, self.backend)
        copied.device, copied.store_weights = self.device, self.store_weights
        copied._source, copied.has_learned = self._source, self.has_learned
        copied._bilm = copy.deepcopy(self._bilm)
        return copied

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the biLM to thinc's `"cpu"` or `"gpu"`."""
        self.device = torch.device("cpu" if device_type == "cpu" else f"cuda:{device_id}")
        if self._bilm is not None:
            cast(torch.nn.Module, self._bilm.model).to(self.device)

    @property
    def has_gradients(self) -> bool:
        """Whether an optimizer step would change the biLM."""
        return self._bilm is not None and any(
            parameter.grad is not None for parameter in self._bilm.model.parameters()
        )

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update each parameter that has a gradient."""
        if self._bilm is None:
            return
        if self.device.type == "cuda" and not has_cupy and self.has_gradients:
            raise ValueError(
                f"Expected cupy to train the biLM on {self.device}: thinc's optimizers need it. "
                "Install it (pip install cupy-cuda13x), or set device to null."
            )
        for name, parameter in self._bilm.model.named_parameters():
            if parameter.grad is not None:
                arrays: list[Any] = [torch2xp(x) for x in (parameter.data, parameter.grad)]
                value, _ = optimizer((self.id, name), *arrays)
                _set_values(parameter, xp2torch(value, device=parameter.device))
                parameter.grad = None
                self.has_learned = True

    @contextmanager
    def use_params(self, params: dict[tuple[int, str], Any]) -> Iterator[None]:
        """Temporarily replace the parameters, for example by an optimizer's averages."""
        parameters = dict(self._bilm.model.named_parameters()) if self._bilm else {}
        others = {name: params[self.id, name] for name in parameters if (self.id, name) in params}
        own = {name: parameters[name].data for name in others}
        for name, value in others.items():
            _set_values(parameters[name], xp2torch(value, device=parameters[name].device))
        try:
            yield
        finally:
            for name, value in own.items():
                _set_values(parameters[name], value)


def _set_values(parameter: Parameter, values: Tensor) -> None:
    """Set the values of a parameter; increment its version, even if the memory stays the same.

    The cache of word vectors and the packed LSTM weights depend on the version. thinc's optimizers
    write with NumPy, which does not change the version.
    """
    parameter.data = values
    torch.autograd.graph.increment_version(parameter)


def limit_fork_threads() -> None:
    """Compute with one thread in a forked process, such as a worker of `nlp.pipe(n_process=2)`.

    The threads of PyTorch's pool do not exist in a fork, which would wait for them forever.
    """
    if os.getpid() not in _KNOWN_PROCESSES:
        torch.set_num_threads(1)
        _KNOWN_PROCESSES.add(os.getpid())


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars, which disturb the table of `spacy train`."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _resolve_name(name: str) -> str:
    from hf_elmo.bundled import resolve_name

    return resolve_name(name)


def _check_is_elmo(name: str, source: str, revision: str | None) -> None:
    from hf_elmo import ElmoConfig
    from hf_elmo.bundled import BUNDLED_NAME
    from hf_elmo.stored_model import check_name

    advice = (
        f"Set model.name of the 'elmo' component to {BUNDLED_NAME!r}, the bundled model, to a "
        f"folder with config.json and {WEIGHTS_FILE}, or to a name OWNER/NAME on the Hugging Face "
        "Hub, which needs a network unless it was fetched before; `elmo-convert` makes such a "
        "folder from an older ELMo file."
    )
    try:
        check_name(source)
        config, _ = ElmoConfig.get_config_dict(source, revision=revision or "main")
    except OSError as error:
        raise OSError(f"Found no ELMo model {name!r}. {advice}") from error
    if config.get("model_type") != ElmoConfig.model_type:
        raise ValueError(
            f"Expected an ELMo model, got {name!r} of type {config.get('model_type')!r}. {advice}"
        )


def _digest_weights(name: str) -> str:
    folder = Path(_resolve_name(name))
    digest = hashlib.sha256()
    for pattern in ("*.safetensors", "pytorch_model*.bin"):  # one file, or shards
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return DIGEST_PREFIX + digest.hexdigest()
