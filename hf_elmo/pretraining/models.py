"""Models to train: new models, and existing models for continued training."""

import logging
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.language_model.models import load_vocabulary
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.tokenization_elmo import ElmoTokenizer

logger = logging.getLogger(__name__)

# Shapes of the published models (allennlp.org/elmo), and of the smaller bundled model.
PRESETS: dict[str, dict[str, Any]] = {
    "mini": {
        "cell_size": 1024,
        "projection_size": 128,
        "num_highway_layers": 1,
        "char_filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256]],
    },
    "small": {"cell_size": 1024, "projection_size": 128, "num_highway_layers": 1},
    "medium": {"cell_size": 2048, "projection_size": 256, "num_highway_layers": 1},
    "original": {},
}


def create_model(
    config: ElmoConfig, vocabulary: TargetVocabulary
) -> tuple[ElmoForPreTraining, PreTrainedTokenizerBase]:
    """Create an untrained biLM that reads bytes, and its tokenizer.

    Raises:
        ValueError: If the configuration has a word lexicon.
    """
    config.vocab_size = len(vocabulary)
    tokenizer = ElmoTokenizer.from_config(config)
    return ElmoForPreTraining(config), tokenizer


def load_model_to_continue(
    name: str, vocabulary: TargetVocabulary
) -> tuple[ElmoForPreTraining, PreTrainedTokenizerBase]:
    """Load a biLM for continued training, with a softmax for the given target words.

    Softmax rows of known words are kept. Rows of other words are initialised randomly.

    Args:
        name: Folder or Hub name of a biLM, with or without a softmax.
        vocabulary: New target words.
    """
    bilm = ElmoModel.from_pretrained(name)
    config = ElmoConfig.from_pretrained(name)
    config.vocab_size = len(vocabulary)
    model = ElmoForPreTraining(config)
    model.elmo.load_state_dict(bilm.state_dict())
    old_words = load_vocabulary(name)
    if old_words is not None and bilm.config.vocab_size == len(old_words):
        old = ElmoForPreTraining.from_pretrained(name).softmax
        known = [row for row, word in enumerate(vocabulary.words) if word in old_words]
        old_rows = old_words.convert_words_to_ids(vocabulary.words[row] for row in known)
        with torch.no_grad():
            model.softmax.weight[known] = old.weight[old_rows]
            model.softmax.bias[known] = old.bias[old_rows]
        logger.info("Kept %d of %d target words.", len(known), len(vocabulary))
    return model, AutoTokenizer.from_pretrained(name)
