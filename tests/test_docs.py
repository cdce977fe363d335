"""The code in the pages of docs/ runs, and prints what its comments say."""

import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in FOLDER.glob("*.md") if "```python" in path.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_prints_what_its_comments_say(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, page.name, "exec"), namespace)
    assert capsys.readouterr().out.splitlines() == expected
