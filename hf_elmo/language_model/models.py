"""Load a language model: a biLM with its softmax and its target words."""

from pathlib import Path

from transformers.utils.hub import cached_file

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.loading import check_name
from hf_elmo.modeling_heads import ElmoForPreTraining
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


def load_language_model(
    name: str,
) -> tuple[ElmoForPreTraining, ElmoTokenizer, TargetVocabulary]:
    """Load a biLM with its softmax, its tokenizer and its target words.

    Args:
        name: Folder or Hub name.

    Raises:
        OSError: If there is no model of this name.
        ValueError: If the model has no target words, or not as many as softmax rows.
    """
    check_name(name)
    ElmoConfig.from_pretrained(name)  # raises clear errors for wrong names
    vocabulary = load_vocabulary(name)
    if vocabulary is None:
        raise ValueError(
            f"Expected {VOCABULARY_NAME} and a softmax in {name}: it is a biLM without its "
            "language model. Convert one with its softmax and vocabulary, or train one."
        )
    model = ElmoForPreTraining.from_pretrained(name)
    if len(vocabulary) != model.config.vocab_size:
        raise ValueError(
            f"Expected {model.config.vocab_size} words in {VOCABULARY_NAME} of {name}, one for "
            f"each row of its softmax, got {len(vocabulary)}."
        )
    return model.eval(), ElmoTokenizer.from_pretrained(name), vocabulary
