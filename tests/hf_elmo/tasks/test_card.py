"""The model card of a task model."""

from hf_elmo.tasks import ElmoCorefConfig, ElmoNerConfig
from hf_elmo.tasks.card import make_task_card


def test_a_card_names_the_task_for_the_hub() -> None:
    config = ElmoNerConfig(architectures=["ElmoForNer"], scores={"f1": 0.5})
    card = make_task_card(config, name="my-ner", license="mit", language="en")
    assert card.startswith("---\n")
    assert "pipeline_tag: token-classification" in card
    assert "license: mit" in card
    assert "- en\n" in card
    assert 'pipeline("elmo-ner", model="my-ner")' in card
    assert "| f1 | 0.5000 |" in card


def test_missing_scores_are_told() -> None:
    assert "Not recorded." in make_task_card(ElmoNerConfig(), name="my-ner")


def test_a_card_claims_no_pipeline_of_the_hub_for_coreference() -> None:
    assert "pipeline_tag" not in make_task_card(ElmoCorefConfig(), name="my-coref")
