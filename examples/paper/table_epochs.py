"""Scores with more epochs: does longer training still help?

python examples/paper/table_epochs.py DATA RESULTS --vectors vectors.bin
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
from runs import NARROW, TITLES, Run, make_runs, score, serve, write_table

# Epochs to compare, one run each (seed 1; coreference: fold 1), by task and configuration.
LENGTHS = {
    ("entailment", "static"): (15, 30),
    ("entailment", "elmo"): (15, 30),
    ("entailment", "words"): (30,),
    ("entailment", "words-alone"): (30,),
    ("entailment", "elmo-alone"): (30,),
    ("squad", "static"): (24,),
    ("squad", "static" + NARROW): (24, 48),
    ("squad", "elmo"): (9, 16),
    ("squad", "input"): (9, 24),
    ("squad", "words-alone"): (24,),
    ("srl", "static"): (10,),
    ("srl", "elmo"): (10,),
    ("coref", "static"): (36,),
    ("coref", "elmo"): (9, 36),
    ("coref", "elmo" + NARROW): (9,),
    ("ner", "static"): (100,),
    ("ner", "elmo"): (50,),
    ("ner", "static" + NARROW): (50, 100),
    ("ner", "elmo" + NARROW): (50, 100),
    ("sentiment", "static"): (4, 8),
    ("sentiment", "elmo"): (4, 8),
}
HEADER = ("task", "input", "dimensions", "epochs", "best dev score", "at epoch", "test")


RUNS = [
    Run(task, config, epochs=number)
    for (task, config), numbers in LENGTHS.items()
    for number in numbers
]


def write(results: Path) -> str:
    """Format the table."""
    rows = []
    for run in RUNS:
        config = run.config.removesuffix(NARROW)
        row = [TITLES[run.task], config, "256" if config == run.config else "100"]
        row.append(str(run.epochs))
        path = run.find_folder(results) / "result.json"
        if not path.exists():
            rows.append([*row, "not run yet", "", ""])
            continue
        known = json.loads(path.read_text("utf-8"))
        curve = known.get("curve", [])
        best = [f"{100 * max(curve):.1f}", str(1 + int(np.argmax(curve)))] if curve else ["", ""]
        rows.append([*row, *best, f"{score(run.task, np.array(known['counts'])):.1f}"])
    return write_table(HEADER, rows)


if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)
