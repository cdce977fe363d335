"""ELMo's biLM as a transformers model."""

from transformers import AutoTokenizer

from .configuration_elmo import ElmoConfig
from .modeling_elmo import (
    ElmoForPreTraining,
    ElmoForPreTrainingOutput,
    ElmoModel,
    ElmoModelOutput,
    ElmoPreTrainedModel,
    ElmoScalarMix,
    ElmoState,
)
from .tokenization_elmo import ElmoTokenizer

__all__ = [
    "ElmoConfig",
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoScalarMix",
    "ElmoState",
    "ElmoTokenizer",
]

AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
