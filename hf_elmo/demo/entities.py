"""Entities that trained spaCy pipelines find in the demo's sentences."""

from collections.abc import Sequence
from html import escape

from .page import EXAMPLES

SENTENCES = (
    "John Smith left London in March for the coast of Brazil.",
    "The Bank of England lent the Washington Post ten million dollars.",
    *(sentence for sentence, _ in EXAMPLES[:2]),
)
SECTION = """<section class="entities" aria-labelledby="entities">
  <h2 id="entities">Entities</h2>
  <p class="soft">What trained pipelines find.</p>
  <div class="columns">{}</div>
</section>"""


def make_entities(pipelines: Sequence[str]) -> str:
    """Show the entities of a few sentences, as HTML in which all text is escaped.

    Args:
        pipelines: Folders or packages of pipelines that set entities, such as one with ELMo and
            one without; a column for each.

    Raises:
        OSError: If there is no such pipeline.
    """
    return SECTION.format("".join(map(_make_column, pipelines)))


def _make_column(pipeline: str) -> str:
    import spacy
    from spacy import displacy

    docs = list(spacy.load(pipeline).pipe(SENTENCES))
    found = displacy.render([doc for doc in docs if doc.ents], style="ent", jupyter=False)
    return f"<div><h3>{escape(pipeline)}</h3>{found or '<p>None.</p>'}</div>"
