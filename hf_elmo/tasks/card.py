"""The model card of a task model."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files

from huggingface_hub import ModelCardData

from .configuration import ElmoTaskConfig

TEMPLATE = "card.md"
TASKS_FILE = "cards.toml"
SCORE = re.compile(r"\| \S+ \| \d+\.\d{4} \|")


def make_task_card(
    config: ElmoTaskConfig,
    *,
    name: str,
    license: str | None = None,  # noqa: A002 (the metadata's own name)
    language: str | Sequence[str] | None = None,
    tags: Iterable[str] = (),
) -> str:
    """Write a task model's card, the `README.md` beside its weights.

    Args:
        config: The model's configuration, with its scores if known.
        name: Name for `from_pretrained`.
        license: The Hub's identifier of the weights' licence; None = not stated.
        language: Code or codes of the language ("en"); None = not stated.
        tags: Tags in addition to "elmo".

    Returns:
        Markdown with a metadata header.
    """
    folder = files(__package__)
    about = tomllib.loads((folder / TASKS_FILE).read_text(encoding="utf-8"))[config.model_type]
    metadata = ModelCardData(
        license=license,
        language=[language] if isinstance(language, str) else list(language or []) or None,
        library_name="transformers",
        pipeline_tag=about.get("pipeline_tag"),
        tags=["elmo", *tags],
    )
    rows = [f"| {name} | {score:.4f} |" for name, score in (config.scores or {}).items()]
    table = ["On the dev examples:", "", "| score | value |", "|---|---|", *rows]
    return (
        (folder / TEMPLATE)
        .read_text(encoding="utf-8")
        .format(
            metadata=metadata.to_yaml(),
            name=name,
            model_type=config.model_type,
            architecture=(config.architectures or ["The model"])[0],
            purpose=about["purpose"],
            elmo_at=config.elmo_at,
            scores="\n".join(table) if rows else "Not recorded.",
        )
    )


def have_same_text(card: str, other: str) -> bool:
    """Return whether two cards differ at most in their scores."""
    first, second = (
        [line for line in text.splitlines() if not SCORE.fullmatch(line)] for text in (card, other)
    )
    return first == second
