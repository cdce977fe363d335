"""Tiny task models, one for each task."""

from collections.abc import Callable
from functools import partial

import pytest
import task_cases

from hf_elmo import ElmoModel


@pytest.fixture(params=list(task_cases.EXAMPLES))
def task_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_case(tiny_model: ElmoModel) -> Callable[..., task_cases.Case]:
    return partial(task_cases.make_case, tiny_model)
