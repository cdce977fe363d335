"""Labels of texts by their probabilities."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("name", ["sentiment", "entailment"])
def test_probabilities_sum_to_one_and_the_best_label_is_predicted(
    name: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(name)
    batch = case.task.make_batch(case.examples, case.inputs)
    ranked = case.model.rank(**batch)
    assert [sum(labels.values()) for labels in ranked] == pytest.approx([1.0, 1.0])
    assert list(ranked[0]) == case.model.config.label_names
    best = case.model(**batch).logits.argmax(dim=1).tolist()
    assert case.model.predict(**batch) == [case.model.config.label_names[row] for row in best]
