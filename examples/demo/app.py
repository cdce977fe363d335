"""The demo with Gradio, for a Space: `pip install gradio`; takes a model's name or none."""

import sys

import gradio as gr

from hf_elmo.demo.explorer import Explorer

explorer = Explorer.load(sys.argv[1] if len(sys.argv) > 1 else "elmo-mini-en")


def show(sentence: str, word: str, *shares: float) -> tuple[list[list[str]], list[list[str]]]:
    """Return the neighbours of a word in its sentence, and what the model would have said."""
    words = sentence.split()
    if word not in words:
        raise gr.Error(f"Expected a word of the sentence, got {word!r}.")
    position = words.index(word)
    try:
        found = explorer.find_neighbors(words, position, shares)
        guesses = explorer.guess(words, position)
    except ValueError as error:
        raise gr.Error(str(error)) from error
    neighbors = []
    for (number, place), cosine in found:
        near = explorer.sentences[number]
        neighbors.append([f"{cosine:.2f}", near[place], " ".join(near)])
    return neighbors, [[direction, ", ".join(found)] for direction, found in guesses.items()]


inputs = [
    gr.Textbox("He sat on the bank of the river .", label="Sentence", max_length=1000),
    gr.Textbox("bank", label="Word", max_length=100),
    *(gr.Slider(0, 1, 1, label=f"Share of layer {n}") for n in range(explorer.num_layers)),
]
outputs = [
    gr.Dataframe(headers=["cosine", "word", "sentence"], label="Nearest words"),
    gr.Dataframe(headers=["direction", "guesses"], label="Guesses"),
]
gr.Interface(show, inputs, outputs, title="ELMo: words in context").launch()
