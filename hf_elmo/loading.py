"""Base class of all ELMo models: initial values and loading."""

import copy
import os
from os import PathLike
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from .configuration_elmo import ElmoConfig
from .lstm import ElmoLstm
from .model_card import make_model_card
from .scalar_mix import ElmoScalarMix
from .stored_model import check_name, check_weights, is_of_bilm


class ElmoPreTrainedModel(PreTrainedModel):
    """Base class of all ELMo models: configuration, initial values, loading."""

    config: ElmoConfig
    config_class: type[PreTrainedConfig]
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoTokenEncoder", "ElmoLstmStack"]  # noqa: RUF012 (transformers' own)
    _keys_to_ignore_on_load_unexpected = [r"^softmax\."]  # noqa: RUF012 (a biLM without its LM head)
    _supports_context_parallel = False
    if not hasattr(PreTrainedModel, "activation_checkpointing_enable"):  # its name in 5.13
        activation_checkpointing_enable: Any = PreTrainedModel.gradient_checkpointing_enable

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
        """Initialise all modules; transformers skips those of other packages without parameters."""
        super()._initialize_weights(module)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load a model as `PreTrainedModel.from_pretrained` does, and check its weights.

        Raises:
            ValueError: If a tensor of the biLM is missing (transformers would draw it at random),
                surplus or misshapen, or if weights are not finite floating-point numbers.
            OSError: If there is no such model.
        """
        wants_report = kwargs.pop("output_loading_info", False)
        if pretrained_model_name_or_path is not None:
            check_name(pretrained_model_name_or_path)
        model: Self
        report: dict[str, Any]
        model, report = super().from_pretrained(  # type: ignore[misc]  # a pair, as asked for
            pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
        )
        misshapen = [name for name, *_ in report["mismatched_keys"]]
        for problem, names in (
            ("misses", report["missing_keys"]),
            ("has surplus", report["unexpected_keys"]),
            ("has misshapen", misshapen),
        ):
            wrong = sorted(filter(is_of_bilm, names))
            if wrong and not wants_report:
                raise ValueError(
                    f"The checkpoint {str(pretrained_model_name_or_path)!r} {problem} tensors: "
                    f"{', '.join(wrong)}."
                )
        if getattr(model, "hf_quantizer", None) is None:
            check_weights(model.state_dict())
        model._freeze()  # transformers makes new, trainable parameters when it loads
        return (model, report) if wants_report else model

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


def find_device(name: str | None) -> torch.device:
    """Find a device by its name; None = the GPU of this process, or the CPU without a GPU.

    Raises:
        ValueError: If the device is not available.
    """
    if name is None and torch.cuda.is_available():
        number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return torch.device("cuda", number)
    try:
        return torch.empty(0, device=name or "cpu").device
    except (RuntimeError, AssertionError) as error:  # AssertionError: PyTorch without CUDA
        cause = str(error).partition("\n")[0]
        raise ValueError(f"Expected a device of this machine, got {name!r}: {cause}") from error


def find_input_device(model: Any) -> torch.device:
    """Return a model's device; the CPU if accelerate loads the weights when they are used."""
    device: torch.device = model.device
    return torch.device("cpu") if device.type == "meta" else device
