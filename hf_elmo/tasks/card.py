"""The model card of a task model."""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from huggingface_hub import ModelCardData

from .configuration import ElmoTaskConfig

TEMPLATE = "card.md"
# By model type: the Hub's name of the task, if there is one, and the purpose.
PURPOSES: dict[str, tuple[str | None, str]] = {
    "elmo-ner": ("token-classification", "finds named entities: a biLSTM and a CRF"),
    "elmo-sentiment": (
        "text-classification",
        "classifies the sentiment of sentences: a biattentive classification network",
    ),
    "elmo-entailment": (
        "text-classification",
        "predicts whether a sentence follows from another: ESIM",
    ),
    "elmo-srl": ("token-classification", "finds semantic roles: an interleaved highway biLSTM"),
    "elmo-squad": (
        "question-answering",
        "finds answers in a text: bidirectional attention flow and self-attention",
    ),
    "elmo-coref": (None, "finds coreferent mentions: end-to-end spans"),
}


def make_task_card(
    config: ElmoTaskConfig,
    *,
    name: str,
    license: str | None = None,  # noqa: A002 (the metadata's own name)
    language: str | Sequence[str] | None = None,
    tags: Iterable[str] = (),
) -> str:
    """Describe a task model, for the `README.md` beside its weights.

    Args:
        config: Its configuration, with the scores that are known.
        name: Name for `from_pretrained`.
        license: The Hub's identifier of the weights' licence; None = not stated.
        language: Code or codes of the language ("en"); None = not stated.
        tags: Tags in addition to "elmo".

    Returns:
        Markdown with a metadata header.
    """
    tag, purpose = PURPOSES[config.model_type]
    metadata = ModelCardData(
        license=license,
        language=[language] if isinstance(language, str) else list(language or []) or None,
        library_name="transformers",
        pipeline_tag=tag,
        tags=["elmo", *tags],
    )
    rows = [f"| {name} | {score:.4f} |" for name, score in (config.scores or {}).items()]
    table = ["On the dev examples:", "", "| score | value |", "|---|---|", *rows]
    template = (files(__package__) / TEMPLATE).read_text(encoding="utf-8")
    return template.format(
        metadata=metadata.to_yaml(),
        name=name,
        model_type=config.model_type,
        architecture=(config.architectures or ["The model"])[0],
        purpose=purpose,
        elmo_at=config.elmo_at,
        scores="\n".join(table) if rows else "Not recorded.",
    )
