"""Run the code of README and pages, and rewrite what it prints: `python docs/printed.py`.

Behind `print(...)  #` stands what is printed; the tests compare. After a change of the bundled
weights, this rewrites it, and shows the lines that are new: the text around them may need a change.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from difflib import unified_diff
from pathlib import Path

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
OUTPUT = re.compile(r"^(\s*(?:print\(.*)?\)  # )(.*)$", re.MULTILINE)  # long calls are wrapped


def find_blocks(text: str, language: str) -> list[str]:
    """Return the code of a page, block by block."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def find_printed(code: str) -> list[str]:
    """Return the lines that code prints, as its comments say."""
    return [line for _, line in OUTPUT.findall(code)]


def run(code: str, name: str) -> list[str]:
    """Run code in an empty folder, where `my-elmo` is the bundled model; return what it prints."""
    from hf_elmo.bundled import resolve_name

    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("my-elmo").symlink_to(resolve_name("elmo-mini-en"))
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue().splitlines()


def rewrite(text: str, printed: list[str]) -> str:
    """Put what was printed behind the calls that print.

    Raises:
        ValueError: If there are more lines or fewer.
    """
    code = "\n".join(find_blocks(text, "python"))
    if len(printed) != len(find_printed(code)):
        raise ValueError(f"Expected {len(find_printed(code))} lines, got {len(printed)}.")
    lines = iter(printed)

    def rewrite_block(block: re.Match[str]) -> str:
        return OUTPUT.sub(lambda match: match[1] + next(lines), block[0])

    return re.sub(r"^```python\n.*?^```", rewrite_block, text, flags=re.DOTALL | re.MULTILINE)


def main() -> None:
    """Rewrite all pages."""
    for page in [README, *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        blocks = find_blocks(text, "python")
        # The blocks of a page run one after the other, those of the README each on its own.
        codes = blocks if page == README else ["\n".join(blocks)]
        printed = [line for code in codes for line in run(code, str(page))]
        new = rewrite(text, printed)
        names = [str(page.relative_to(DOCS.parent))] * 2
        sys.stdout.writelines(
            unified_diff(text.splitlines(True), new.splitlines(True), *names, n=0)
        )
        page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
