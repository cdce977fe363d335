"""Vectors in transformers: layers, mixes, state, an empty sentence in a batch."""

import torch
from transformers import AutoModel, AutoTokenizer

import hf_elmo  # registers the Auto classes
from hf_elmo.bundled import resolve_name

name = resolve_name("elmo-mini-en")  # or a folder, or a name on the Hub
tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name)

sentences = [["The", "bank", "raised", "its", "rates"], ["A", "river", "bank"], []]
batch = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
print("input_ids:", tuple(batch["input_ids"].shape), "(batch, tokens, characters)")

with torch.inference_mode():
    out = model(**batch, output_hidden_states=True)
print("layers:", len(out.hidden_states), "of", tuple(out.last_hidden_state.shape))
print("the configured mix:", tuple(out.elmo.shape))

# A task learns its own mix.
mix = hf_elmo.ElmoScalarMix(model.config.num_mixed_layers, dropout=0.5)
print("a task's mix:", tuple(mix(out.hidden_states).shape), "weights", mix.weights.tolist())

# The original implementations carried the LSTM state from call to call. Here, pass it as `state`.
with torch.inference_mode():
    again = model(**batch, state=out.state)
print("same words, other state: differ by", f"{(again.elmo - out.elmo).abs().max():.2f}")
