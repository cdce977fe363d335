"""The model card of a task model."""

from collections.abc import Iterable, Sequence

from huggingface_hub import ModelCardData

from .configuration import ElmoTaskConfig

# Of each model type: what it does, in the Hub's words where it has them, and in ours.
PURPOSES: dict[str, tuple[str | None, str]] = {
    "elmo-ner": ("token-classification", "finds named entities: a biLSTM and a CRF"),
    "elmo-sentiment": (
        "text-classification",
        "tells the sentiment of sentences: a biattentive classification network",
    ),
    "elmo-entailment": (
        "text-classification",
        "tells whether a sentence follows from another: ESIM",
    ),
    "elmo-srl": (
        "token-classification",
        "finds who did what to whom: an interleaved highway biLSTM",
    ),
    "elmo-squad": (
        "question-answering",
        "finds answers in a text: bidirectional attention flow and self-attention",
    ),
    "elmo-coref": (None, "finds mentions of the same: end-to-end spans"),
}

CARD = """\
---
{metadata}
---

# {name}

{architecture} {purpose}. It is one of the six systems by which ELMo was shown (Peters et al.
2018), with ELMo at: {elmo_at}.

## Use

With `pip install spacy-elmo`:

```
python -m hf_elmo predict {name} INPUT OUTPUT
```

in Python:

```python
from transformers import pipeline

import hf_elmo.tasks

pipe = pipeline("{model_type}", model="{name}")
```

and in spaCy: `nlp.add_pipe("elmo_task", config={{"model": "{name}"}})`.

## Scores

{scores}
"""


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
        name: What users pass to `from_pretrained`.
        license: Identifier of the weights' licence, as the Hub spells it; None = not stated.
        language: Code or codes of the language ("en"), None = not stated.
        tags: Tags besides "elmo".

    Returns:
        Markdown, with metadata in front.
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
    table = ["On the examples by which it was chosen:", "", "| score | value |", "|---|---|", *rows]
    return CARD.format(
        metadata=metadata.to_yaml(),
        name=name,
        model_type=config.model_type,
        architecture=(config.architectures or ["The model"])[0],
        purpose=purpose,
        elmo_at=config.elmo_at,
        scores="\n".join(table) if rows else "Not recorded.",
    )
