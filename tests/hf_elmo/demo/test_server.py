"""The demo on localhost."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.demo.explorer import Explorer
from hf_elmo.demo.server import HOST, MAX_BYTES, DemoServer

JSON = {"Content-Type": "application/json"}
QUESTION = b'{"words": ["bank"], "position": 0}'


@pytest.fixture
def address(tiny_model: ElmoModel) -> Iterator[str]:
    collection = [("", ["a", "bank"]), ("", ["the", "river"])]
    explorer = Explorer(tiny_model, ElmoTokenizer(), None, collection)
    with DemoServer(explorer, "<p>Grüße</p>", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(address: str, body: bytes, headers: dict[str, str] = JSON) -> tuple[int, Any]:
    request = urllib.request.Request(f"{address}/query", body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            content = error.read()
        return error.code, json.loads(content) if content.startswith(b"{") else content


def test_the_page_is_served(address: str) -> None:
    with urllib.request.urlopen(f"{address}/") as response:
        assert response.read().decode() == "<p>Grüße</p>"
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"


def test_nothing_else_is_served(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        urllib.request.urlopen(f"{address}/../../etc/passwd")
    caught.value.close()


def test_a_sentence_is_answered(address: str) -> None:
    status, answer = ask(address, b'{"words": ["<b>", "bank"], "position": 1}')
    assert (status, answer["words"], answer["position"]) == (200, ["<b>", "bank"], 1)
    assert set(answer) == {"words", "position", "products", "norm", "guesses", "misspelt"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"not json", "Expecting value"),
        (b'"\xff"', "can't decode"),
        (b'{"words": "bank", "position": 0}', "Expected {"),
        (b'{"words": [1], "position": 0}', "Expected {"),
        (b'{"words": ["bank"], "position": 3}', "Expected a position from 0 to 0, got 3"),
        (json.dumps({"words": ["a"] * 61, "position": 0}).encode(), "1 to 60 words, got 61"),
    ],
)
def test_a_bad_question_is_told_why(address: str, body: bytes, message: str) -> None:
    status, answer = ask(address, body)
    assert status == 400
    assert message in answer["error"]


def test_a_lone_surrogate_is_answered(address: str) -> None:
    assert ask(address, b'{"words": ["\\ud800"], "position": 0}')[0] == 200


def test_a_long_question_is_refused(address: str) -> None:
    assert ask(address, QUESTION + b" " * MAX_BYTES)[0] == 413


def test_a_form_of_another_page_is_refused(address: str) -> None:
    assert ask(address, QUESTION, {"Content-Type": "text/plain"})[0] == 415


def test_a_browser_leaves_the_usual_port_out(address: str) -> None:
    assert ask(address, QUESTION, {**JSON, "Host": "localhost"})[0] == 200


def test_another_name_for_this_machine_is_refused(address: str) -> None:
    assert ask(address, QUESTION, {**JSON, "Host": "evil.example:80"})[0] == 404


def test_only_this_machine_can_reach_it(tiny_model: ElmoModel) -> None:
    explorer = Explorer(tiny_model, ElmoTokenizer(), None, [("", ["bank"])])
    with DemoServer(explorer, "", 0) as server:
        assert server.server_address[0] == "127.0.0.1"
