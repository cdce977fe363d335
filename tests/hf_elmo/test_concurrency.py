"""One model in many threads and processes: equal vectors, and settings left as they were."""

import logging
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from batches import embed_all
from torch.testing import assert_close
from torch.utils.data import DataLoader
from transformers.utils import logging as transformers_logging

from hf_elmo import ElmoModel, ElmoTokenizer

TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # float32 sums of small models, in another order
SENTENCES = [
    f"The bank raised rate {number} by {number % 7} points".split() for number in range(48)
]
SMALLEST_NORMAL = 2.0**-1022


def read_settings() -> dict[str, object]:
    """What a library must leave as it was, in this thread and in the process."""
    return {
        "threads": torch.get_num_threads(),
        "flushes denormal numbers": bool(
            torch.tensor(SMALLEST_NORMAL, dtype=torch.float64) / 2 == 0
        ),
        "gradients": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warnings": list(warnings.filters),
        "level": logging.getLogger().level,
        "transformers' level": transformers_logging.get_verbosity(),
        "bars": transformers_logging.is_progress_bar_enabled(),
    }


@contextmanager
def serve(model: ElmoModel, tokenizer: ElmoTokenizer) -> Iterator[str]:
    """Answer a sentence with its vectors, each request in a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            words = self.rfile.read(int(self.headers["Content-Length"])).decode().split()
            batch = tokenizer([words], is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                body = model(**batch).elmo[0].numpy().tobytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_under_load_answers_as_one_call_does(tiny_model: ElmoModel) -> None:
    tokenizer = ElmoTokenizer()
    expected = embed_all(SENTENCES, deepcopy(tiny_model.eval()), tokenizer)  # a cache of its own
    before = read_settings()

    def ask(address: str, words: list[str]) -> np.ndarray:
        with urlopen(Request(address, " ".join(words).encode()), timeout=300) as answer:
            return np.frombuffer(answer.read(), np.float32).reshape(len(words), -1)

    with serve(tiny_model, tokenizer) as address, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(ask, address), SENTENCES * 4))
    for answer, vectors in zip(answers, expected * 4, strict=True):
        assert_close(torch.from_numpy(answer.copy()), torch.as_tensor(vectors), **TOLERANCE)
    assert read_settings() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_compute_the_same(tiny_model: ElmoModel, start: str) -> None:
    tokenizer = ElmoTokenizer()
    expected = embed_all(SENTENCES, tiny_model.eval(), tokenizer)
    loader: DataLoader[list[str]] = DataLoader(
        SENTENCES,  # type: ignore[arg-type]  # anything with a length and items will do
        batch_size=8,
        num_workers=2,
        multiprocessing_context=start,
        collate_fn=partial(embed_all, model=tiny_model, tokenizer=tokenizer),
        timeout=900,
    )
    found = [vectors for batch in loader for vectors in batch]
    for vectors, right in zip(found, expected, strict=True):
        assert_close(torch.as_tensor(vectors), torch.as_tensor(right), **TOLERANCE)
