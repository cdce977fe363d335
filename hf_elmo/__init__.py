"""ELMo's biLM as a transformers model."""

from .configuration_elmo import ElmoConfig
from .modeling_elmo import (
    ElmoModel,
    ElmoModelOutput,
    ElmoPreTrainedModel,
    ElmoScalarMix,
    ElmoState,
)

__all__ = [
    "ElmoConfig",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoScalarMix",
    "ElmoState",
]
