"""Base class of all ELMo models: initial values, strict loading, saving."""

import copy
import os
import shutil
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from uuid import uuid4

import torch
from huggingface_hub import CommitInfo, HfApi
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from .configuration_elmo import ElmoConfig, refuse_damage
from .lstm import ElmoLstm
from .model_card import CARD_FILE, make_model_card
from .scalar_mix import ElmoScalarMix
from .stored_model import (
    HUB_OPTIONS,
    WEIGHTS,
    check_dtypes,
    check_keys,
    check_name,
    check_shapes,
    check_tokenizer,
    check_weights,
    explain_damaged_weights,
    find_weights,
)

HAS_OLD_CHECKPOINTING = not hasattr(PreTrainedModel, "activation_checkpointing_enable")
# Options of `save_pretrained(push_to_hub=True)` for the push alone.
PUSH_OPTIONS = {"repo_id", "license", "language", "tags", "private", "revision"}
PUSH_OPTIONS |= {"commit_message", "commit_description", "create_pr"}
MAX_SURPLUS = 2**26  # number of configured values that the files may lack


class ElmoPreTrainedModel(PreTrainedModel):
    """Base class of all ELMo models: configuration, initial values, strict loading."""

    config: ElmoConfig
    config_class: type[PreTrainedConfig]
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoTokenEncoder", "ElmoLstmStack"]  # noqa: RUF012 (transformers' own)
    _keys_to_ignore_on_load_unexpected = [r"^softmax\."]  # noqa: RUF012 (a biLM without its LM head)
    _supports_context_parallel = False

    def make_card(self, **options: Any) -> str:
        """Return the text of the model's card; options as for `make_model_card`."""
        config = copy.deepcopy(self.config)
        config.architectures = [type(self).__name__]  # as saving sets it
        return make_model_card(config, **options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw initial values from the same distributions as bilm-tf (bilm/training.py)."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]  # transformers' own
        if isinstance(module, ElmoLstm):
            module.reset_parameters()
        elif callable(set_values := getattr(module, "set_initial_values", None)):
            set_values()

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Initialise all modules, including modules without own parameters in custom code.

        transformers skips such modules to protect loaded tensors. Here,
        `transformers.initialization` protects them.
        """
        super()._initialize_weights(module)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load a model as `PreTrainedModel.from_pretrained` does, but check its biLM strictly.

        Raises:
            ValueError: If a file is damaged, weights are not finite floating-point numbers, the
                tokenizer does not fit, or a trained mix leaves out other layers than `mix_layers`
                says. Also if a tensor of the biLM is missing or surplus, unless
                the caller asks for the report (`output_loading_info=True`). Missing or surplus
                tensors of heads give transformers' usual warning.
            RuntimeError: If a tensor is misshapen. `ignore_mismatched_sizes=True` allows this in
                heads only.
            OSError: If there is no such model.
        """
        if pretrained_model_name_or_path is not None:
            check_name(pretrained_model_name_or_path)
        wants_report = kwargs.pop("output_loading_info", False)
        allows_misshapen_heads = kwargs.pop("ignore_mismatched_sizes", False)
        model: Self
        report: dict[str, Any]
        name = str(pretrained_model_name_or_path)
        with refuse_damage(name), explain_damaged_weights(name):
            if pretrained_model_name_or_path is not None:
                cls._check_files(name, **kwargs)
            model, report = super().from_pretrained(  # type: ignore[misc]  # a pair, as asked for
                pretrained_model_name_or_path,
                *args,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_shapes` names the tensors
                **kwargs,
            )
        if not wants_report:
            check_keys(report, name)
        check_shapes(report, name, allows_misshapen_heads)
        if getattr(model, "hf_quantizer", None) is None:
            check_weights(model.state_dict())
        for module in model.modules():
            if isinstance(module, ElmoScalarMix):
                module.check_left_out(name)
        model._freeze()  # transformers makes new, trainable parameters when it loads
        if not cls.is_remote_code():
            vars(model.config).pop("auto_map", None)  # names files that saving would not write
        return (model, report) if wants_report else model

    @classmethod
    def _check_files(cls, name: str, config: Any = None, **options: Any) -> None:
        """Check a model's files before memory is allocated for its weights."""
        hub = {key: value for key, value in options.items() if key in HUB_OPTIONS}
        if not isinstance(config, PreTrainedConfig):
            source = name if config is None else config
            config, _ = cls.config_class.from_pretrained(
                source, return_unused_kwargs=True, **options
            )
        check_tokenizer(name, getattr(config, "bilm", config), **hub)
        files = find_weights(name, **hub)
        with torch.device("meta"):
            weights = dict(cls(config).named_parameters())
        for file in files if getattr(config, "quantization_config", None) is None else []:
            check_dtypes(file, {key.removeprefix("elmo.") for key in weights})
        wanted = sum(weight.numel() for weight in weights.values())
        if files and wanted > sum(file.stat().st_size for file in files) + MAX_SURPLUS:
            raise ValueError(
                f"Expected weights of {wanted:,} values in {name!r}, as its config.json says; its "
                "files are too small for them. Its weights do not fit its config.json."
            )

    def save_pretrained(  # type: ignore[override]  # the rest is passed through
        self,
        save_directory: str | PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save as `PreTrainedModel.save_pretrained` does; a push to the Hub adds a model card."""
        names = PUSH_OPTIONS & kwargs.keys() if push_to_hub else ()
        hub_options = {name: kwargs.pop(name) for name in names}
        weights = None if state_dict is None else dict(state_dict)  # transformers empties it
        super().save_pretrained(save_directory, is_main_process, weights, **kwargs)
        folder = Path(save_directory)
        single, shards, index = _name_weights(kwargs.get("variant"))
        if is_main_process and (folder / single).exists() and (folder / index).exists():
            # transformers deletes old shards, but not an old index, nor an old single file, which
            # it would load first.
            (folder / (single if any(folder.glob(shards)) else index)).unlink()
        for path in folder.glob(WEIGHTS) if is_main_process else ():
            set_usual_mode(path)
        if is_main_process and push_to_hub:
            hub_options.setdefault("repo_id", Path(save_directory).resolve().name)
            shared = ("token", "max_shard_size", "variant")
            hub_options |= {x: kwargs[x] for x in shared if x in kwargs}
            self.push_to_hub(**hub_options, state_dict=state_dict)

    def push_to_hub(  # type: ignore[override]  # the rest is passed through
        self,
        repo_id: str,
        *,
        license: str | None = None,  # noqa: A002 (the metadata's own name)
        language: str | Sequence[str] | None = None,
        tags: Sequence[str] = (),
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        max_shard_size: int | str = "50GB",
        state_dict: dict[str, Tensor] | None = None,
        variant: str | None = None,
        **commit: Any,
    ) -> CommitInfo:
        """Upload the model to the Hub, with a model card unless the repository has one.

        Args:
            repo_id: Name of the repository, which is created if it does not exist.
            license: As for `make_model_card`.
            language: As for `make_model_card`.
            tags: As for `make_model_card`.
            private: Whether a new repository is private; None = the owner's default.
            token: Access token of the Hub; None = the stored token.
            revision: Branch to write to; None = the main branch.
            max_shard_size: Largest size of a weight file.
            state_dict: Weights to upload; None = the model's own.
            variant: Name of a variant of the weights, such as `"fp16"`, uploaded beside others.
            **commit: For `HfApi.upload_folder`: `commit_message`, `commit_description`,
                `create_pr`.

        Returns:
            The commit.
        """
        hub = HfApi(token=token)
        repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not revision.startswith("refs/"):
            hub.create_branch(repo_id, branch=revision, exist_ok=True)
        # A model loaded as remote code lacks the card's template, which is not a Python file.
        keeps_card = self.is_remote_code() or hub.file_exists(repo_id, CARD_FILE, revision=revision)
        commit.setdefault("commit_message", "Upload model")
        with TemporaryDirectory() as folder:
            if not keeps_card:
                card = self.make_card(name=repo_id, license=license, language=language, tags=tags)
                Path(folder, CARD_FILE).write_text(card, encoding="utf-8")
            self.save_pretrained(
                folder, state_dict=state_dict, max_shard_size=max_shard_size, variant=variant
            )
            has_weights = any(Path(folder).glob(WEIGHTS))  # not an adapter alone
            return hub.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                ignore_patterns=[CARD_FILE] if keeps_card else None,
                # Weights of an earlier upload in more or fewer files.
                delete_patterns=[*_name_weights(variant)] if has_weights else None,
                revision=revision,
                **commit,
            )

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> Any:
        """Return the table of `get_input_embeddings`. Its size cannot be changed.

        Raises:
            ValueError: If another size is asked for.
        """
        table: Any = self.get_input_embeddings()
        size = table.num_embeddings
        if new_num_tokens not in (None, size) or size % (pad_to_multiple_of or 1):
            raise ValueError(
                f"Expected {size} tokens, the model's characters (or words of its lexicon), got "
                f"{new_num_tokens}, in multiples of {pad_to_multiple_of or 1}. They are part of "
                "the model: words of any spelling can be read, and none needs to be added."
            )
        return table

    def activation_checkpointing_enable(  # type: ignore[override]  # the rest is passed through
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Enable the recomputation of activations in the backward pass, as the base class does.

        Raises:
            ValueError: If `use_reentrant` is not False: the gradient through `state` would be lost.
        """
        options = {"use_reentrant": False, **(activation_checkpointing_kwargs or {})}
        if options["use_reentrant"] is not False:
            raise ValueError(
                f"Expected use_reentrant=False, got {options['use_reentrant']!r}: reentrant "
                "checkpointing drops the gradient that flows through the state."
            )
        if HAS_OLD_CHECKPOINTING:
            super().gradient_checkpointing_enable(options)  # type: ignore[no-untyped-call]  # transformers' own
        else:
            super().activation_checkpointing_enable(options, **kwargs)

    if HAS_OLD_CHECKPOINTING:
        gradient_checkpointing_enable = activation_checkpointing_enable  # type: ignore[assignment]  # as above

    def post_init(self) -> None:
        """Draw the initial values, and freeze all untrained weights."""
        super().post_init()  # type: ignore[no-untyped-call]  # transformers' own
        self._freeze()

    def _freeze(self) -> None:
        """Freeze all untrained weights; set a frozen biLM to evaluation mode."""
        if hasattr(self, "features") and self.config.freeze_bilm:
            self.base_model.requires_grad_(False).eval()
        for module in self.modules():
            if isinstance(module, ElmoScalarMix):
                module.freeze()


def _name_weights(variant: str | None) -> tuple[str, str, str]:
    """Name the files of weights: a single file, a pattern of shards, and the index of shards."""
    if not variant:
        return SAFE_WEIGHTS_NAME, "model-*-of-*.safetensors", SAFE_WEIGHTS_INDEX_NAME
    stem = SAFE_WEIGHTS_INDEX_NAME.removesuffix(".json")
    single, shards = f"model.{variant}.safetensors", f"model.{variant}-*-of-*.safetensors"
    return single, shards, f"{stem}.{variant}.json"


def find_device(name: str | None) -> torch.device:
    """Find a device by its name; None = the GPU of this process, or the CPU without a GPU.

    Raises:
        ValueError: If the device is not available.
    """
    if name is not None:
        problem = f"Expected a device that is here, cpu, cuda or the like, got {name!r}."
        try:
            device = torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:  # AssertionError: PyTorch without CUDA
            raise ValueError(problem) from error
        if device.type == "meta":  # has no values
            raise ValueError(problem)
        return device
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def find_input_device(model: Any) -> torch.device:
    """Return a model's device; the CPU if accelerate loads the weights when they are used."""
    device: torch.device = model.device
    return torch.device("cpu") if device.type == "meta" else device


def set_usual_mode(path: Path) -> None:
    """Give a file the usual permissions (umask); safetensors lets only its owner read it."""
    probe = path.with_name(f"{path.name}.{uuid4().hex}.temporary")
    try:
        probe.touch()
        shutil.copymode(probe, path)
    finally:
        probe.unlink(missing_ok=True)
