"""Table 3: ELMo at the input of the task's encoder, at its output, and at both.

python examples/paper/table_3.py DATA RESULTS --vectors vectors.bin
"""

from functools import partial

from ablation import Row, list_ablation, write_ablation
from runs import make_runs, serve

from hf_elmo.tasks import TASKS

PAPER = {
    "entailment": {"input": 88.9, "both": 89.5, "output": 88.7},
    "srl": {"input": 84.7, "both": 84.3, "output": 80.9},
    "squad": {"input": 85.1, "both": 85.6, "output": 84.8},
}


def make_row(task: str, place: str) -> Row:
    """Make the row of a place; the place of the preset has the configuration `elmo`."""
    is_own = place == TASKS[task].presets["cpu"].fields.get("elmo_at", "input")
    title = {"both": "input and output"}.get(place, place)
    config = "elmo" if is_own else place
    return Row(task, title + " *" * is_own, config, PAPER[task][place])


ROWS = [make_row(task, place) for task, places in PAPER.items() for place in places]
RUNS = list_ablation(ROWS)
write = partial(write_ablation, ROWS)

if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)
