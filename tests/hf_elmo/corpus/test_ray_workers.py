"""Ray: actors without room, a cluster without room, and standard input."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_elmo.corpus.ray_workers import _check_room

ROOT = Path(__file__).parents[3]

# Two actors on one core: the second never starts.
CROWDED = """
import sys
from hf_elmo.corpus import ray_workers
from hf_elmo.corpus.rows import Row
from hf_elmo.corpus.sentence_embedder import SentenceEmbedder

start_ray = ray_workers._start_ray
ray_workers._start_ray = lambda address, num_cpus: start_ray(address, 1)
blocks = [[Row(number, ["a", "bank"])] for number in range(6)]
try:
    pieces = ray_workers.embed_in_ray(blocks, SentenceEmbedder(sys.argv[1]), num_workers=2)
    print(sum(len(list(block)) for block in pieces))
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("tiny-elmo", "6\n"), ("no-such-folder", "Could not load ")]
)
def test_ray_goes_on_with_the_actors_that_have_room(
    tiny_folder: Path, name: str, said: str
) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-c", CROWDED, str(tiny_folder.with_name(name))]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=900
    )
    assert done.stdout.startswith(said)


@pytest.mark.parametrize("found", [{"CPU": 1.0}, {"CPU": 8.0}])
def test_a_ray_without_room_for_an_actor_is_refused(found: dict[str, float]) -> None:
    _check_room({"CPU": 2.0, "GPU": 1.0}, {"CPU": 2, "GPU": 1})
    with pytest.raises(ValueError, match=r"Expected [12] [CG]PU for a worker .* found [10] in all"):
        _check_room(found, {"CPU": 2, "GPU": 1})


@pytest.mark.slow
def test_ray_embeds_what_comes_on_stdin(tiny_folder: Path) -> None:
    pytest.importorskip("ray")
    output = tiny_folder.parent / "vectors.npz"
    command = [
        sys.executable,
        "-m",
        "hf_elmo",
        "embed",
        "-",
        str(output),
        "--model",
        str(tiny_folder),
        "--engine",
        "ray",
    ]
    subprocess.run(command, cwd=ROOT, input=b"A bank\nNo bank\n", check=True, timeout=900)
    with np.load(output) as arrays:
        assert arrays["0"].shape[-2] == 2
