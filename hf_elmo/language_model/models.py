"""Load a language model: a biLM with its softmax and its target words."""

from pathlib import Path

import torch
from transformers.utils.hub import cached_file

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.stored_model import check_name, load_config
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .vocabulary import PIECES_NAME, VOCABULARY_NAME, TargetVocabulary


def load_vocabulary(name: str) -> TargetVocabulary | None:
    """Load the target words of a model from its folder or the Hub; None = no target words."""
    check_name(name)
    path, _ = (
        cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        for file in (VOCABULARY_NAME, PIECES_NAME)
    )
    return None if path is None else TargetVocabulary.from_file(Path(path).parent)


def load_with_softmax(name: str, num_words: int) -> ElmoForPreTraining | None:
    """Load a biLM with its softmax in float32, in which it is computed; None = without a softmax.

    Args:
        name: Folder or Hub name.
        num_words: Number of target words.

    Raises:
        ValueError: If the softmax has another number of rows.
    """
    model, found = ElmoForPreTraining.from_pretrained(
        name, dtype=torch.float32, output_loading_info=True
    )
    missing = set(found["missing_keys"])
    if {"softmax.weight", "softmax.bias"} <= missing:
        return None
    if missing:
        ElmoForPreTraining.from_pretrained(name)  # without loading info, it names missing tensors
        raise ValueError(f"Expected all weights of a language model in {name}, got no {missing}.")
    if num_words != model.config.vocab_size:
        raise ValueError(
            f"Expected {model.config.vocab_size} words in {VOCABULARY_NAME} of {name}, one for "
            f"each row of its softmax, got {num_words}."
        )
    return model


def load_language_model(
    name: str,
) -> tuple[ElmoForPreTraining, ElmoTokenizer, TargetVocabulary]:
    """Load a biLM with its softmax, its tokenizer and its target words.

    Args:
        name: Folder or Hub name.

    Raises:
        OSError: If there is no model of this name.
        ValueError: If the model has no softmax or no target words, or another number of them.
    """
    load_config(name, ElmoConfig)  # raises clear errors for wrong names and models
    vocabulary = load_vocabulary(name)
    model = None if vocabulary is None else load_with_softmax(name, len(vocabulary))
    if model is None or vocabulary is None:
        raise ValueError(
            f"Expected {VOCABULARY_NAME} and a softmax in {name}: it is a biLM without its "
            "language model. Convert one with its softmax and vocabulary, or train one."
        )
    return model.train(False), ElmoTokenizer.from_pretrained(name), vocabulary
