"""Continue training on the start of a story, and print the perplexity of its end."""

import subprocess
import sys
import tempfile
from pathlib import Path

from hf_elmo.bundled import resolve_name
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.perplexity import evaluate_text
from hf_elmo.text.text_reader import read_files

# One sentence per line, words separated by spaces.
STORY = Path(__file__).parents[1] / "tests" / "data" / "lighthouse.txt"
NUM_TRAINING_SENTENCES = 100

name = resolve_name(sys.argv[1] if len(sys.argv) > 1 else "elmo-mini-en")
with tempfile.TemporaryDirectory() as folder:
    lines = STORY.read_text(encoding="utf-8").splitlines(keepends=True)
    train, heldout, output = (Path(folder, part) for part in ("train.txt", "heldout.txt", "model"))
    train.write_text("".join(lines[:NUM_TRAINING_SENTENCES]), encoding="utf-8")
    heldout.write_text("".join(lines[NUM_TRAINING_SENTENCES:]), encoding="utf-8")

    command = [sys.executable, "-m", "hf_elmo", "pretrain"]
    command += ["--from", name, "--train", str(train), "--output", str(output)]
    options = "--epochs 3 --batch-size 4 --learning-rate 0.0003 --warmup-steps 10 --negatives 0"
    command += [*options.split(), "--log-every", "20", "--cpu"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    for when, model in (("before", name), ("after", str(output))):
        perplexity = evaluate_text(*load_language_model(model), read_files([heldout]))
        print(f"perplexity {when}: {perplexity.average:.1f}")
