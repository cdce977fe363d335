"""Which tasks annotate docs."""

from hf_elmo.tasks import TASKS
from spacy_elmo.task_component import PAIRED
from spacy_elmo.task_results import ANNOTATORS


def test_each_task_annotates_docs_or_takes_pairs() -> None:
    assert {*ANNOTATORS, *PAIRED} == set(TASKS)
    assert len(ANNOTATORS) + len(PAIRED) == len(TASKS)
