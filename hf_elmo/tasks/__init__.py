"""The six task models of Peters et al. (2018).

Their layers take a tensor `(batch, tokens, width)` and a mask, True at words. Padding is on the
right. The result for a sentence depends neither on padding nor on the rest of the batch.
"""

from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.pipelines import PIPELINE_REGISTRY

from hf_elmo.tokenization_elmo import ElmoTokenizer

from .coref import ElmoCorefConfig, ElmoForCoref
from .entailment import ElmoEntailmentConfig, ElmoForEntailment
from .ner import ElmoForNer, ElmoNerConfig
from .pipelines import PIPELINES
from .registry import TASKS, load_task_model
from .sentiment import ElmoForSentiment, ElmoSentimentConfig
from .squad import ElmoForSquad, ElmoSquadConfig
from .srl import ElmoForSrl, ElmoSrlConfig

__all__ = [
    "PIPELINES",
    "TASKS",
    "ElmoCorefConfig",
    "ElmoEntailmentConfig",
    "ElmoForCoref",
    "ElmoForEntailment",
    "ElmoForNer",
    "ElmoForSentiment",
    "ElmoForSquad",
    "ElmoForSrl",
    "ElmoNerConfig",
    "ElmoSentimentConfig",
    "ElmoSquadConfig",
    "ElmoSrlConfig",
    "load_task_model",
]

for _task in TASKS.values():
    _config = _task.model.config_class
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoTokenizer.register(_config, tokenizer_class=ElmoTokenizer, exist_ok=True)
    if _config.model_type not in PIPELINE_REGISTRY.get_supported_tasks():
        _pipeline = PIPELINES[_config.model_type]
        PIPELINE_REGISTRY.register_pipeline(_config.model_type, _pipeline, _task.model, type="text")
        # Otherwise save_pretrained would copy the pipeline's code.
        delattr(_pipeline, "_registered_impl")

AutoModelForTokenClassification.register(ElmoNerConfig, ElmoForNer, exist_ok=True)
AutoModelForTokenClassification.register(ElmoSrlConfig, ElmoForSrl, exist_ok=True)
AutoModelForSequenceClassification.register(ElmoSentimentConfig, ElmoForSentiment, exist_ok=True)
AutoModelForSequenceClassification.register(ElmoEntailmentConfig, ElmoForEntailment, exist_ok=True)
AutoModelForQuestionAnswering.register(ElmoSquadConfig, ElmoForSquad, exist_ok=True)
