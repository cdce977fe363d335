"""Table 2: no ELMo, the top layer only, and all layers with a large or a small lambda.

python examples/paper/table_2.py DATA RESULTS --vectors vectors.bin
"""

from functools import partial

from ablation import list_ablation, make_rows, write_ablation
from runs import make_runs, serve

TITLES = {
    "static": "static vectors",
    "top": "top layer",
    "lambda-1": "all layers, λ = 1",
    "elmo": "all layers, small λ *",
}
PAPER = {
    "entailment": (88.1, 89.1, 89.3, 89.5),
    "srl": (81.6, 84.1, 84.6, 84.8),
    "squad": (80.8, 84.7, 85.0, 85.2),
}
ROWS = make_rows(TITLES, PAPER)
RUNS = list_ablation(ROWS)
write = partial(write_ablation, ROWS)

if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)
