"""ELMo's biLM as a transformers model."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from .configuration_elmo import ElmoConfig
from .loading import ElmoPreTrainedModel
from .model_card import make_model_card
from .modeling_elmo import ElmoModel
from .modeling_heads import (
    ElmoFeatures,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
)
from .modeling_outputs import ElmoForPreTrainingOutput, ElmoModelOutput, ElmoState
from .scalar_mix import ElmoScalarMix
from .tokenization_elmo import ElmoTokenizer

__all__ = [
    "ElmoConfig",
    "ElmoFeatures",
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoScalarMix",
    "ElmoState",
    "ElmoTokenizer",
    "make_model_card",
]

AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
AutoModelForPreTraining.register(ElmoConfig, ElmoForPreTraining, exist_ok=True)
AutoModelForSequenceClassification.register(
    ElmoConfig, ElmoForSequenceClassification, exist_ok=True
)
AutoModelForTokenClassification.register(ElmoConfig, ElmoForTokenClassification, exist_ok=True)
