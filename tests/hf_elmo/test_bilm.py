"""What every engine of a biLM shares."""

import pytest
import torch
from torch.testing import assert_close

from hf_elmo import ElmoModel
from hf_elmo.bilm import ElmoBilm
from hf_elmo.onnx import OrtElmoModel


@pytest.mark.parametrize("engine", [lambda model: model, OrtElmoModel.from_model])
def test_a_state_of_another_batch_is_refused_by_every_engine(
    tiny_model: ElmoModel, engine: type[ElmoBilm]
) -> None:
    ids = torch.ones(2, 3, tiny_model.config.max_characters_per_token, dtype=torch.long)
    model = engine(tiny_model)
    state = model(ids).state  # type: ignore[operator]  # both can be called
    with pytest.raises(ValueError, match="Expected a state of 1 sentences, got 2"):
        model(ids[:1], state=state)  # type: ignore[operator]


@pytest.mark.parametrize("engine", [lambda model: model, OrtElmoModel.from_model])
def test_a_state_continues_a_text_with_every_engine(
    tiny_model: ElmoModel, engine: type[ElmoBilm]
) -> None:
    ids = torch.randint(1, 262, (2, 3, tiny_model.config.max_characters_per_token))
    with torch.no_grad():
        first = engine(tiny_model)(ids)  # type: ignore[operator]
        continued = engine(tiny_model)(ids, state=first.state)  # type: ignore[operator]
        expected = tiny_model(ids, state=tiny_model(ids).state)
    assert not torch.equal(first.elmo, continued.elmo)
    assert_close(continued.elmo, expected.elmo, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sizes", [[3, 3, 3], [1, 3, 2, 1, 1, 4]])
def test_batch_sizes_that_do_not_fit_are_refused_by_every_engine(
    sizes: list[int], tiny_model: ElmoModel
) -> None:
    packed = torch.randn(12, tiny_model.config.projection_size)
    for model in (tiny_model, OrtElmoModel.from_model(tiny_model)):
        with pytest.raises(ValueError, match="Expected batch_sizes with the sum 12 that never"):
            model.run_bilm(packed, sizes)


def test_batch_sizes_of_a_packed_sequence_are_read(tiny_model: ElmoModel) -> None:
    packed = torch.randn(3, tiny_model.config.projection_size)
    expected, _ = tiny_model.run_bilm(packed, [2, 1])
    for sizes in ((2, 1), torch.tensor([2, 1])):
        got, _ = tiny_model.run_bilm(packed, sizes)  # type: ignore[arg-type]
        assert_close(got, expected, rtol=0, atol=0)


def test_the_directions_of_a_zero_state_are_separate(tiny_model: ElmoModel) -> None:
    state = tiny_model.zero_state(2, torch.zeros(0))
    assert state.backward is not None
    state.forward[0].add_(1)
    assert not state.backward[0].any()
