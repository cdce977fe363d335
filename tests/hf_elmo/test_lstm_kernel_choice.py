"""The choice of the elementwise work of a time step."""

import sys

import pytest

from hf_elmo.lstm_elementwise import activate, activate_fast
from hf_elmo.lstm_kernel_choice import choose_activation


def test_a_cpu_runs_pytorch_the_faster_formula_where_it_is_exact_enough() -> None:
    assert choose_activation("cpu", is_fast=False) is activate
    assert choose_activation("cpu", is_fast=True) is activate_fast


def test_a_gpu_without_triton_runs_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "hf_elmo.lstm_triton_kernel", raising=False)
    choose_activation.cache_clear()
    assert choose_activation("cuda", is_fast=True) is activate
    choose_activation.cache_clear()
