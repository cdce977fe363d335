"""Processes that run for long."""

import gc

import psutil
import pytest
import torch

from hf_elmo import ElmoModel, ElmoTokenizer

# The allocator settles by 1 to 4 MB; a leak is above this from 932 bytes a call on. Tensors are
# objects too, of which not one more was counted.
MAX_BYTES = 2**23
MAX_OBJECTS = 100


@pytest.mark.slow
def test_nine_thousand_calls_take_no_memory(tiny_model: ElmoModel) -> None:
    tokenizer, process = ElmoTokenizer(), psutil.Process()
    options = {"is_split_into_words": True, "padding": True, "return_tensors": "pt"}
    sizes = []
    with torch.inference_mode():
        for call in range(10_001):
            words = [f"word{(call * k) % 997}" for k in range(1, 2 + call % 7)]
            tiny_model(**tokenizer([words, []], **options), output_hidden_states=True)
            if call in (1_000, 10_000):
                gc.collect()
                sizes.append((process.memory_full_info().uss, len(gc.get_objects())))
    (first_bytes, first_objects), (last_bytes, last_objects) = sizes
    assert last_bytes - first_bytes < MAX_BYTES
    assert last_objects - first_objects < MAX_OBJECTS
