"""Model card of a biLM or of a head over it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from huggingface_hub import ModelCardData
from transformers import AutoModel

from .configuration_elmo import ElmoConfig

CARD_FILE = "README.md"  # the Hub's name for a model card
JOINERS = "\u200c\u200d"  # invisible, but part of Persian and Indic words, and of emoji
LONGEST_QUOTE = 300  # characters
TEMPLATE = Path(__file__).with_name("model_card.md")

# For each head, its task on the Hub, the class that loads it, and the output in the card's example.
HEADS = {
    "ElmoForTokenClassification": (
        "token-classification",
        "AutoModelForTokenClassification",
        "out.logits: (2, 5, {num_labels})",
    ),
    "ElmoForSequenceClassification": (
        "text-classification",
        "AutoModelForSequenceClassification",
        "out.logits: (2, {num_labels})",
    ),
}
LANGUAGE_MODEL = "ElmoForPreTraining"
BILM = ("feature-extraction", "AutoModel", "out.elmo: (2, 5, {hidden_size}), the mix of the layers")


def make_model_card(
    config: ElmoConfig,
    *,
    name: str = "my-elmo",
    license: str | None = None,  # noqa: A002 (the metadata's own name)
    language: str | Sequence[str] | None = None,
    source: str | None = None,
    files: Iterable[tuple[str, str]] = (),
    tags: Iterable[str] = (),
) -> str:
    """Make the text of a model card, the `README.md` beside the weights.

    Args:
        config: The model's configuration; its `architectures` determine the task.
        name: Name for `from_pretrained`.
        license: Identifier of the weights' licence, as the Hub spells it; None = not stated. It is
            never guessed, because only the owner of the weights can choose a licence.
        language: Language code such as "en", or several codes; None = not stated.
        source: One or more sentences (Markdown) on the origin of the weights.
        files: Name and SHA-256 of each file that the weights come from.
        tags: Tags in addition to "elmo".

    Returns:
        Markdown with a metadata header.
    """
    task, auto_class, output = HEADS.get((config.architectures or [""])[0], BILM)
    languages = [language] if isinstance(language, str) else list(language or [])
    metadata = ModelCardData(
        license=license,
        language=languages or None,
        library_name="transformers",
        pipeline_tag=task,
        tags=["elmo", "spacy", *tags],
    )
    readings = {"its characters": config.num_filters, "a lexicon": config.word_vocab_size}
    origin = [
        source or "Not recorded.",
        *(f"- {quote(file)}, SHA-256 `{sha}`" for file, sha in files),
    ]
    return TEMPLATE.read_text(encoding="utf-8").format(
        metadata=metadata.to_yaml(),
        name=name,
        layers=config.num_hidden_layers,
        directions="both directions" if config.bidirectional else "one direction",
        reading=" and ".join(name for name, size in readings.items() if size),
        auto_class=auto_class,
        output=output.format(num_labels=config.num_labels, hidden_size=config.hidden_size),
        language=languages[0] if len(languages) == 1 else "xx",
        sizes="\n".join(f"| {name} | {size} |" for name, size in _list_sizes(config)),
        training="\n".join(origin),
        licence=license or "Not stated: ask who trained the weights, and set `license` above.",
    )


def quote(text: str) -> str:
    """Quote text of unknown origin as code, in one line, so that it makes no headings or links."""
    line = " ".join(text.split()).replace("`", "'") or "(no text)"
    line = "".join(x if x.isprintable() or x in JOINERS else "?" for x in line)
    return f"`{line if len(line) <= LONGEST_QUOTE else line[:LONGEST_QUOTE] + '…'}`"


def _list_sizes(config: ElmoConfig) -> Iterator[tuple[str, object]]:
    with torch.device("meta"):
        yield "Parameters of the biLM", f"{AutoModel.from_config(config).num_parameters():,}"
    yield "Vector size", config.hidden_size
    yield "LSTM", f"cell size {config.cell_size:,}, projection size {config.projection_size}"
    if config.num_filters:
        filters = ", ".join(f"{n} of width {width}" for width, n in config.char_filters or [])
        yield "Characters per word", config.max_characters_per_token
        yield "Character filters", f"{filters}; {config.num_highway_layers} highway layers"
    if config.word_vocab_size:
        yield "Words of the lexicon", f"{config.word_vocab_size - 1:,}"
    heads = config.architectures or [LANGUAGE_MODEL]
    if config.vocab_size and LANGUAGE_MODEL in heads:  # other models keep the number
        yield "Target words of the softmax", f"{config.vocab_size:,}"
