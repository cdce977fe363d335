"""The cache of word vectors: bounded, never stale, safe to share and to copy."""

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from batches import make_ids
from torch import Tensor
from torch.testing import assert_close

from hf_elmo import ElmoModel
from hf_elmo.word_cache import ENTRY_BYTES, WordCache

WEIGHTS = "as they are"


def encode(model: ElmoModel, words: list[str]) -> Tensor:
    with torch.inference_mode():
        return model.encode_words(make_ids(model.config, words), None)


def compute(keys: list[bytes]) -> Tensor:
    """A vector that tells its word."""
    return torch.tensor([[float(key[0]), 1.0] for key in keys])


def test_a_known_word_is_not_computed_again(tiny_model: ElmoModel) -> None:
    first = encode(tiny_model, ["a", "b", "a"])
    tiny_model.token_encoder._encode_chunk = None  # type: ignore[assignment]
    assert_close(encode(tiny_model, ["b", "a"]), first[1:], rtol=0, atol=0)


def test_known_and_new_words_come_in_their_order(tiny_model: ElmoModel) -> None:
    expected = torch.cat([encode(copy.deepcopy(tiny_model), [word]) for word in "dabce"])
    encode(tiny_model, ["a", "c"])
    assert_close(encode(tiny_model, list("dabce")), expected, rtol=0, atol=1e-5)


def test_words_used_longest_ago_are_forgotten() -> None:
    cache = WordCache(max_bytes=3 * (ENTRY_BYTES + 1 + 8))
    computed: list[bytes] = []

    def note(keys: list[bytes]) -> Tensor:
        computed.extend(keys)
        return compute(keys)

    for key in (b"a", b"b", b"c", b"a", b"d"):  # "b" is the one used longest ago
        cache.fetch([key], WEIGHTS, note)
    cache.fetch([b"c", b"a", b"d"], WEIGHTS, note)
    assert computed == [b"a", b"b", b"c", b"d"]
    assert len(cache) == 3


@pytest.mark.parametrize("num_entries", [0, 1, 2, 30])
def test_vectors_are_right_whatever_the_bound(num_entries: int) -> None:
    cache = WordCache(max_bytes=num_entries * (ENTRY_BYTES + 1 + 8))
    for start in range(40):
        keys = [bytes([number % 26]) for number in range(start * 7, start * 7 + 5)]
        assert_close(cache.fetch(keys, WEIGHTS, compute), compute(keys), rtol=0, atol=0)
        assert len(cache) <= num_entries


def write_past_the_count(model: ElmoModel) -> None:
    weight = model.token_encoder.projection.weight
    weight.data.copy_(weight * 0.9)  # as averages of weights are set
    model.clear_caches()


def hook(model: ElmoModel) -> None:
    model.token_encoder.projection.register_forward_hook(lambda _, __, out: out + 1)


def hook_before(model: ElmoModel) -> None:
    model.token_encoder.projection.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))


def wrap_forward(model: ElmoModel) -> None:
    projection = model.token_encoder.projection
    inner = projection.forward
    projection.forward = lambda x: inner(x) + 1


@pytest.mark.parametrize("change", [write_past_the_count, hook, hook_before, wrap_forward])
def test_changed_weights_give_changed_vectors(
    tiny_model: ElmoModel, change: Callable[[ElmoModel], None]
) -> None:
    before = encode(tiny_model, ["a", "b"])
    change(tiny_model)
    after = encode(tiny_model, ["a", "b"])
    assert not torch.equal(before, after)
    tiny_model.word_cache.clear()
    assert_close(after, encode(tiny_model, ["a", "b"]), rtol=0, atol=0)


def test_hooks_everywhere_are_heeded(tiny_model: ElmoModel) -> None:
    before = encode(tiny_model, ["a"])
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, out: out + 1 if isinstance(module, torch.nn.Linear) else None
    )
    try:
        assert not torch.equal(encode(tiny_model, ["a"]), before)
    finally:
        handle.remove()
    assert_close(encode(tiny_model, ["a"]), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, which peft asks
def test_adapters_of_peft_are_heeded(tiny_model: ElmoModel) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["projection"], init_lora_weights=False)
    plain = encode(tiny_model, ["a"])
    model = peft.get_peft_model(tiny_model, config, adapter_name="one").eval()
    model.add_adapter("two", config)
    vectors = {}
    for name in ("one", "two", "one"):
        model.set_adapter(name)
        vector = encode(tiny_model, ["a"])
        assert_close(vectors.setdefault(name, vector), vector, rtol=0, atol=0)
    with model.disable_adapter():
        assert_close(encode(tiny_model, ["a"]), plain)
    assert all((vector - plain).abs().max() > 0.01 for vector in vectors.values())
    assert (vectors["one"] - vectors["two"]).abs().max() > 0.01
    merged = model.merge_and_unload()
    assert_close(encode(merged, ["a"]), vectors["one"])


def test_gradients_flow_past_the_cache(tiny_model: ElmoModel) -> None:
    encode(tiny_model, ["a"])
    vectors = tiny_model.encode_words(make_ids(tiny_model.config, ["a"]), None)
    vectors.sum().backward()
    assert tiny_model.token_encoder.projection.weight.grad is not None


def test_vectors_and_gradients_of_training_are_those_of_evaluation(tiny_model: ElmoModel) -> None:
    encoder = tiny_model.double().token_encoder
    ids = torch.randint(1, 260, (5, encoder.config.max_characters_per_token))
    results = []
    for training in (False, True):
        encoder.train(training).zero_grad()
        vectors = encoder(ids, None)
        vectors.square().sum().backward()
        results.append([vectors, *(parameter.grad for parameter in encoder.parameters())])
    torch.testing.assert_close(*results)


def test_what_is_cached_does_not_depend_on_gradients_being_on(tiny_model: ElmoModel) -> None:
    tiny_model.requires_grad_(False)
    ids = torch.randint(1, 260, (5, tiny_model.config.max_characters_per_token))
    cached = tiny_model.encode_words(ids, None)
    tiny_model.word_cache.clear()
    with torch.no_grad():
        assert_close(tiny_model.encode_words(ids, None), cached, rtol=0, atol=0)


def test_a_frozen_model_uses_the_cache_with_gradients_on(tiny_model: ElmoModel) -> None:
    tiny_model.requires_grad_(False)
    tiny_model.encode_words(make_ids(tiny_model.config, ["a"]), None)
    tiny_model.token_encoder._encode_chunk = None  # type: ignore[assignment]
    tiny_model.encode_words(make_ids(tiny_model.config, ["a"]), None)


def test_nothing_is_kept_of_weights_in_training(tiny_model: ElmoModel) -> None:
    encode(tiny_model.train(), ["a"])
    assert len(tiny_model.word_cache) == 0


def test_cached_vectors_can_enter_a_graph(tiny_model: ElmoModel) -> None:
    encode(tiny_model, ["a"])
    with torch.no_grad():
        vectors = tiny_model.encode_words(make_ids(tiny_model.config, ["a", "b"]), None)
    assert len(tiny_model.word_cache) == 2
    torch.nn.Linear(8, 1)(vectors).sum().backward()


def test_autocast_does_not_leave_its_vectors_behind(tiny_model: ElmoModel) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert encode(tiny_model, ["a"]).dtype == torch.bfloat16
    assert encode(tiny_model, ["a"]).dtype == torch.float32


@pytest.mark.parametrize("copy_model", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_begin_with_an_empty_cache(
    tiny_model: ElmoModel, copy_model: Callable[[ElmoModel], ElmoModel]
) -> None:
    tiny_model.word_cache = WordCache(max_bytes=123456)
    vectors = encode(tiny_model, ["a"])
    other = copy_model(tiny_model)
    assert len(other.word_cache) == 0
    assert other.word_cache.max_bytes == 123456
    assert_close(encode(other, ["a"]), vectors, rtol=0, atol=0)


def test_the_cache_is_no_part_of_the_state_dict(tiny_model: ElmoModel) -> None:
    names = set(tiny_model.state_dict())
    encode(tiny_model, ["a"])
    assert set(tiny_model.state_dict()) == names


def test_threads_share_a_cache_that_is_too_small() -> None:
    cache = WordCache(max_bytes=7 * (ENTRY_BYTES + 1 + 8))
    faults: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(300):
            keys = [bytes([key]) for key in torch.randperm(20, generator=generator)[:9].tolist()]
            if not torch.equal(cache.fetch(keys, WEIGHTS, compute), compute(keys)):
                faults.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(cache) == 7


def test_a_forked_process_does_not_wait_for_a_lock_held_at_the_fork() -> None:
    cache = WordCache()
    cache.fetch([b"a"], WEIGHTS, compute)

    def work() -> None:
        cache.fetch([b"a", b"b"], WEIGHTS, compute)

    with cache._lock:
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
    process.join(timeout=300)
    is_done = process.exitcode == 0
    process.kill()
    assert is_done
