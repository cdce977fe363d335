"""Vectors in spaCy: the same word in two sentences, for different mixes of layers."""

import spacy

nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
nlp.add_pipe("elmo")  # the bundled model; config={"model": {"name": ...}} for another
river, money = nlp.pipe(["We sat on the bank of the river .", "The bank raised its rates ."])

print("doc.tensor:", river.tensor.shape, river.tensor.dtype)
print("first numbers of 'bank':", river[4].vector[:3].round(2), money[1].vector[:3].round(2))

# Layer 0 reads only characters, so both words have the same vector. The LSTM layers differ.
for layer in range(3):
    blank = spacy.blank("en")
    weights = [0.0 if number == layer else -100.0 for number in range(3)]
    blank.add_pipe("elmo", config={"mix": {"weights": weights}})
    first, second = blank("We sat on the bank of the river .")[4], blank("The bank raised .")[1]
    cosine = first.vector @ second.vector / (first.vector_norm * second.vector_norm)
    print(f"cosine of the two by layer {layer}: {cosine:.2f}")
