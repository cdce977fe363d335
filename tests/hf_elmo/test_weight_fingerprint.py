"""Marks of weights: every change that can be told is seen, and what cannot be told has none."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close

from hf_elmo import ElmoConfig, ElmoModel
from hf_elmo.inference.backend import choose_backend
from hf_elmo.weight_fingerprint import KeptResult, fingerprint_weights

CONFIG = ElmoConfig()


def make_weight() -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(512, 128))


@torch.no_grad()
def write_one_value(weight: nn.Parameter) -> nn.Parameter:
    weight[5, 7] += 1
    return weight


def make_meta_weight() -> nn.Parameter:
    return nn.Parameter(torch.empty(2, 2, device="meta"))


def replace(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach())  # of the same values in the same memory


def replace_values(weight: nn.Parameter) -> nn.Parameter:
    weight.data = weight.detach().half()
    weight.data = weight.detach().float()
    return weight


def step(weight: nn.Parameter) -> nn.Parameter:
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], foreach=True).step()
    return weight


@pytest.mark.parametrize("change", [write_one_value, replace, replace_values, step])
def test_a_change_changes_the_mark(change: Callable[[nn.Parameter], nn.Parameter]) -> None:
    weight = make_weight()
    before = fingerprint_weights(CONFIG, [weight])
    assert before is not None
    assert fingerprint_weights(CONFIG, [weight]) == before
    assert fingerprint_weights(CONFIG, [change(weight)]) != before


def test_a_changed_setting_changes_the_mark() -> None:
    weight, config = make_weight(), ElmoConfig()
    before = fingerprint_weights(config, [weight])
    config.char_activation = "tanh"
    assert fingerprint_weights(config, [weight]) != before


def test_a_setting_changed_in_place_changes_the_mark() -> None:
    weight, config = make_weight(), ElmoConfig(mix_weights=[0.0, 0.0, 0.0])
    before = fingerprint_weights(config, [weight])
    assert config.mix_weights is not None
    config.mix_weights[2] = 5.0
    assert fingerprint_weights(config, [weight]) != before


def make_inference_parameter() -> nn.Parameter:
    with torch.inference_mode():
        return nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("weight", [torch.ones(3), make_inference_parameter()])
def test_what_is_no_plain_parameter_has_no_mark(weight: Tensor) -> None:
    assert fingerprint_weights(CONFIG, [make_weight(), weight]) is None


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_keeps_nothing(duplicate: Callable[[object], object]) -> None:
    marks, result = fingerprint_weights(CONFIG, [make_weight()]), KeptResult()
    assert duplicate(marks) != marks
    result.get(1, lambda: "old")
    copied = duplicate(result)
    assert isinstance(copied, KeptResult)
    assert copied.get(1, lambda: "new") == "new"


# A model that has computed, and so kept words, packed weights and sessions, against a fresh copy.


def compute(model: ElmoModel) -> Tensor:
    torch.manual_seed(0)
    ids = torch.randint(1, 256, (2, 3, model.config.max_characters_per_token))
    with torch.no_grad():
        return choose_backend(model)(input_ids=ids).last_hidden_state


@torch.no_grad()
def write_values(model: ElmoModel) -> None:
    model.forward_lstm.layers[0].state_weight[0, :2] += 3
    model.token_encoder.projection.weight[0, :2] += 3


def load(model: ElmoModel) -> None:
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def load_by_assignment(model: ElmoModel) -> None:
    state = {name: value * 1.5 for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def round_values(model: ElmoModel) -> None:
    model.bfloat16().float()


def round_values_of_a_part(model: ElmoModel) -> None:
    model.forward_lstm.layers[0].bfloat16().float()
    model.token_encoder.projection.bfloat16().float()


def prune_values(model: ElmoModel) -> None:
    for module, name in (
        (model.token_encoder.projection, "weight"),
        (model.forward_lstm.layers[0], "state_weight"),
    ):
        prune.l1_unstructured(module, name, amount=0.9)


def prune_values_for_good(model: ElmoModel) -> None:
    prune_values(model)
    prune.remove(model.token_encoder.projection, "weight")
    prune.remove(model.forward_lstm.layers[0], "state_weight")


class Factor(nn.Module):
    """Multiplies a weight, as adapters and quantizers change one."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, weight: Tensor) -> Tensor:
        return self.factor * weight


def parametrize_weights(model: ElmoModel) -> None:
    parametrize.register_parametrization(model.token_encoder.projection, "weight", Factor())
    parametrize.register_parametrization(model.forward_lstm.layers[0], "state_weight", Factor())


def change_parametrizations(model: ElmoModel) -> None:
    parametrize_weights(model)
    compute(model)
    for module in model.modules():
        if isinstance(module, Factor):
            module.factor.data.fill_(-1)


def remove_parametrizations(model: ElmoModel) -> None:
    parametrize_weights(model)
    parametrize.remove_parametrizations(model.token_encoder.projection, "weight")
    parametrize.remove_parametrizations(model.forward_lstm.layers[0], "state_weight")


def write_through_data(model: ElmoModel) -> None:
    for weight in model.parameters():
        weight.data.mul_(1.5)


def write_through_data_in_training(model: ElmoModel) -> None:
    model.train()
    compute(model)
    write_through_data(model)
    model.eval()


def replace_a_parameter(model: ElmoModel) -> None:
    layer = model.forward_lstm.layers[1]
    layer.input_weight = nn.Parameter(layer.input_weight * 2)


def take_fused_steps(model: ElmoModel) -> None:
    model.train()
    learn(model)
    model.eval()


def learn(model: ElmoModel) -> None:
    ids = torch.ones(1, 2, model.config.max_characters_per_token, dtype=torch.long)
    model(input_ids=ids).last_hidden_state.square().sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()


def merge_an_adapter(model: ElmoModel) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["projection"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    adapted.eval()
    adapted.merge_and_unload()


def compute_and_merge_an_adapter(model: ElmoModel) -> None:
    peft = pytest.importorskip("peft")
    names = ["input_weight", "state_weight", "projection_weight"]
    config = peft.LoraConfig(
        r=2, target_modules=[], target_parameters=names, init_lora_weights=False
    )
    adapted = peft.get_peft_model(model, config)
    adapted.eval()
    with adapted.disable_adapter():
        compute(model)
    adapted.merge_and_unload()


def change_settings(model: ElmoModel) -> None:
    model.config.forget_bias = 0.2
    model.config.char_activation = "tanh"
    model.config.cell_clip = 0.1


CHANGES = [
    write_values,
    load,
    load_by_assignment,
    round_values,
    round_values_of_a_part,
    prune_values,
    prune_values_for_good,
    parametrize_weights,
    change_parametrizations,
    remove_parametrizations,
    write_through_data,
    write_through_data_in_training,
    replace_a_parameter,
    take_fused_steps,
    learn,
    merge_an_adapter,
    compute_and_merge_an_adapter,
    change_settings,
]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, which peft asks
@pytest.mark.filterwarnings("ignore::UserWarning:peft")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_vectors_are_those_of_the_weights_and_settings_of_now(
    tiny_model: ElmoModel,
    change: Callable[[ElmoModel], None],
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if engine == "torch":
        monkeypatch.setattr("hf_elmo.onnx.support.has_onnxruntime", lambda: False)
    before = compute(tiny_model)
    assert_close(compute(tiny_model), before)
    change(tiny_model)
    after = compute(tiny_model)
    assert (after - before).abs().max() > 1e-3
    assert_close(after, compute(copy.deepcopy(tiny_model)), rtol=0, atol=1e-5)


def test_functional_call_computes_with_the_weights_that_it_is_given(tiny_model: ElmoModel) -> None:
    expected = copy.deepcopy(tiny_model)
    write_values(expected)
    own = compute(tiny_model)
    torch.manual_seed(0)
    ids = torch.randint(1, 256, (2, 3, tiny_model.config.max_characters_per_token))
    for wrap in (nn.Parameter, lambda weight: weight):
        for _ in range(3):
            weights = {name: wrap(w.detach().clone()) for name, w in expected.named_parameters()}
            with torch.no_grad():
                out = functional_call(tiny_model, weights, (ids,))
            assert_close(out.last_hidden_state, compute(expected), rtol=0, atol=1e-5)
    assert_close(compute(tiny_model), own, rtol=0, atol=0)


def test_a_model_made_in_inference_mode_is_computed_anew(tiny_config: ElmoConfig) -> None:
    with torch.inference_mode():
        model = ElmoModel(tiny_config).eval()
        before = compute(model)
        model.token_encoder.projection.weight.mul_(2)
        model.forward_lstm.layers[0].state_weight.mul_(2)
        after = compute(model)
        assert_close(after, compute(copy.deepcopy(model)))
    assert (after - before).abs().max() > 1e-3
    with pytest.raises(ValueError, match="tensors made in inference mode"):
        choose_backend(model, "onnx")


def test_values_are_read_on_a_cpu_alone() -> None:
    weight = make_weight()
    on_cpu, elsewhere = (fingerprint_weights(CONFIG, [x]) for x in (weight, make_meta_weight()))
    weight.data[-1, -1] += 1
    assert fingerprint_weights(CONFIG, [weight]) != on_cpu
    assert elsewhere is not None  # values of this device cannot be read


def test_memory_that_was_freed_is_not_read() -> None:
    values = torch.ones(4000)
    weight = nn.Parameter(values[1000:2000])
    values.untyped_storage().resize_(0)
    assert fingerprint_weights(CONFIG, [weight]) is not None


def test_a_module_without_parameters_has_no_fingerprint() -> None:
    assert fingerprint_weights(CONFIG, []) is None


def test_a_copied_fingerprint_holds_no_weights() -> None:
    fingerprint = fingerprint_weights(CONFIG, [make_weight()])
    assert len(pickle.dumps(fingerprint)) < 100
