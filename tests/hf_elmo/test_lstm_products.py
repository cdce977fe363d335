"""Packed products: each gives the plain product, or is not used."""

import platform
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from hf_elmo.lstm_products import can_pack, choose_product_dtype, multiply, pack_weight

LAYOUTS = {
    "float32": lambda weight: weight,
    "float32, packed": pack_weight,
    "bfloat16": lambda weight: weight.bfloat16(),
    "bfloat16, packed": lambda weight: pack_weight(weight.bfloat16()),
}
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.03}


@pytest.mark.parametrize("addend", ["none", "of all rows", "of each row"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_product(layout: str, addend: str) -> None:
    torch.manual_seed(0)
    precision = layout.partition(",")[0]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight, x = torch.randn(128, 64) / 8, torch.randn(3, 64)
    added = {"none": None, "of all rows": torch.randn(128), "of each row": torch.randn(len(x), 128)}
    expected = x @ weight.T if added[addend] is None else x @ weight.T + added[addend]
    actual = multiply(
        x.to(dtype),
        LAYOUTS[layout](weight),
        None if added[addend] is None else added[addend].to(dtype),
    )
    assert actual.dtype == dtype
    assert_close(actual.float(), expected, rtol=0, atol=TOLERANCES[precision])


def forget_probes() -> None:
    can_pack.cache_clear()


@pytest.fixture
def without_operator(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A PyTorch in which one private operator fails when it is run."""

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no such product")

    namespace, name = request.param
    monkeypatch.setattr(namespace, name, fail)
    forget_probes()
    yield
    forget_probes()


@pytest.mark.parametrize(
    "without_operator",
    [(torch.ops.mkldnn, "_reorder_linear_weight"), (torch.ops.mkldnn, "_linear_pointwise")],
    indirect=True,
)
@pytest.mark.usefixtures("without_operator")
def test_a_weight_stays_as_it_is_where_packed_products_fail() -> None:
    weight = torch.randn(128, 64)
    assert pack_weight(weight) is weight


def test_reduced_products_are_those_that_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = choose_product_dtype.__wrapped__
    assert choose(torch.float32, "cpu") == torch.float32
    assert choose(torch.float64, "cpu") == torch.float64
    assert choose(torch.float16, "cpu") == torch.float32
    assert choose(torch.float16, "cuda") == torch.float16
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert choose(torch.bfloat16, "cpu") == torch.float32
