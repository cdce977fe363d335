"""Tests of the site: it builds without a warning, and its links resolve."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """The anchors of a page, and what it links to and shows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value)
            if name in ("href", "src") and not urlsplit(value).scheme:
                self.links.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", str(ROOT / "docs"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
def test_links_of_the_site_resolve(site: Path) -> None:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        if "_modules" in path.parts:  # viewcode leads back to one name a module, right or not
            continue
        for link in page.links:
            target, anchor = urlsplit(link).path, unquote(urlsplit(link).fragment)
            to = (path.parent / unquote(target)).resolve() if target else path
            is_dead = not to.is_file() or (
                to in pages and anchor and anchor not in pages[to].anchors
            )
            if (
                is_dead or to.suffix == ".md"
            ):  # a link between pages leads to a page, not to its source
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    assert dead == []
