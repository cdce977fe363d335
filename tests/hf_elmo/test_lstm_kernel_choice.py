"""The choice of the elementwise work of a time step."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from hf_elmo.lstm_elementwise import activate, activate_fast
from hf_elmo.lstm_kernel_choice import choose_activation


def test_a_cpu_runs_pytorch_the_faster_formula_where_it_is_exact_enough() -> None:
    assert choose_activation("cpu", is_fast=False) is activate
    assert choose_activation("cpu", is_fast=True) is activate_fast


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module in place of the kernel's."""
    module = ModuleType("hf_elmo.lstm_triton_kernel")
    module.activate = activate_fast  # type: ignore[attr-defined]  # any function
    module.try_once = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    choose_activation.cache_clear()
    yield module
    choose_activation.cache_clear()


def test_a_gpu_runs_the_kernel(kernel: ModuleType) -> None:
    assert choose_activation("cuda", is_fast=False) is activate_fast


def test_a_gpu_without_triton_runs_pytorch(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, kernel.__name__, None)
    assert choose_activation("cuda", is_fast=True) is activate


def test_a_gpu_on_which_the_kernel_fails_runs_pytorch_with_a_warning(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler.\nSee the docs")

    monkeypatch.setattr(kernel, "try_once", fail)
    with pytest.warns(UserWarning, match="PyTorch computes the gates.*Failed to find C compiler.$"):
        assert choose_activation("cuda", is_fast=True) is activate
