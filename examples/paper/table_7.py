"""Table 7: static vectors, layer 0 alone, ELMo alone, and static vectors with ELMo.

python examples/paper/table_7.py DATA RESULTS --vectors vectors.bin
"""

from functools import partial

from ablation import Row, list_ablation, make_rows, write_ablation
from runs import make_runs, serve

TITLES = {
    "static": "static vectors",
    "words-alone": "layer 0",
    "elmo-alone": "ELMo",
    "elmo": "static vectors and ELMo *",
}
PAPER = {
    "entailment": (88.1, 88.5, 89.1, 89.5),
    "srl": (81.6, 81.7, 84.5, 84.7),
    "squad": (80.8, 81.4, 85.3, 85.6),
}
ROWS = make_rows(TITLES, PAPER)
# For entailment, ELMo is also read at the output, but static vectors are not.
ROWS.insert(2, Row("entailment", "layer 0, at the input only", "words-input", None))
ROWS.insert(3, Row("entailment", "static vectors and layer 0", "words", None))
RUNS = list_ablation(ROWS)
write = partial(write_ablation, ROWS)

if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)
