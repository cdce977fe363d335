"""Entities that a trained spaCy pipeline finds in the demo's sentences."""

from .page import EXAMPLES

SENTENCES = (
    "John Smith left London in March for the coast of Brazil.",
    "The Bank of England lent the Washington Post ten million dollars.",
    *(sentence for sentence, _ in EXAMPLES[:2]),
)
SECTION = """<section class="entities" aria-labelledby="entities">
  <h2 id="entities">Entities</h2>
  <p class="soft">What the trained pipeline finds.</p>
  {}
</section>"""


def make_entities(pipeline: str) -> str:
    """Show the entities of a few sentences, as HTML in which all text is escaped.

    Args:
        pipeline: Folder or package of a pipeline that sets entities.

    Raises:
        OSError: If there is no such pipeline.
    """
    import spacy
    from spacy import displacy

    docs = list(spacy.load(pipeline).pipe(SENTENCES))
    return SECTION.format(displacy.render(docs, style="ent", jupyter=False))
