"""Scores with more epochs: does longer training still help?

python examples/paper/table_epochs.py DATA RESULTS --vectors vectors.bin
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
from runs import EPOCHS, SIDES, TITLES, Run, make_runs, score, serve, write_table

# Epochs to compare without ELMo and with ELMo, one run each (seed 1; coreference: fold 1).
LENGTHS = {
    "squad": ((9, 24, 48), (9, 16)),
    "entailment": ((0, 15), (0, 15)),
    "srl": ((5, 10, 20), (5, 10, 20)),
    "coref": ((9, 18), (9, 18)),
    "ner": ((50, 100, 200), (50, 100, 200)),
    "sentiment": ((4, 8), (4, 8)),
}
HEADER = ("task", "input", "epochs", "best dev score", "at epoch", "test")


def list_lengths() -> list[Run]:
    """List a run for each task, side and number of epochs."""
    runs = []
    for task, lengths in LENGTHS.items():
        for config, usual, numbers in zip(SIDES, EPOCHS.get(task, (0, 0)), lengths, strict=True):
            epochs = [0 if number == usual else number for number in numbers]
            runs += [Run(task, config, epochs=number) for number in epochs]
    return runs


RUNS = list_lengths()


def write(results: Path) -> str:
    """Format the table."""
    rows = []
    for run in RUNS:
        usual = EPOCHS[run.task][SIDES.index(run.config)] if run.task in EPOCHS else "patience"
        row = [TITLES[run.task], run.config, str(run.epochs or usual)]
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
