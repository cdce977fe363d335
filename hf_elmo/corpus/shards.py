"""Shares of a corpus for independent runs: `--shard 2/3` is the second of three."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

Item = TypeVar("Item")


class Shard(NamedTuple):
    """A share of a corpus.

    Attributes:
        number: Number of the share, from 1.
        total: Number of shares.
    """

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a share such as "2/3".

        Raises:
            ValueError: If there is no such share.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        shard = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.total:
            raise ValueError(
                "Expected a shard such as 1/3, 2/3 or 3/3, the number of a share and how many "
                f"there are, got {text!r}."
            )
        return shard

    def take(self, items: Iterable[Item]) -> Iterator[Item]:
        """Take the items of this share: every third item if there are three shares."""
        return islice(items, self.number - 1, None, self.total)

    def name_output(self, output: Path) -> Path:
        """Return the path of this share's output, such as `vectors-00002-of-00003.h5`."""
        if self.total == 1:
            return output
        return output.with_name(f"{output.stem}{self._ending}{output.suffix}")

    def list_outputs(self, output: Path) -> list[Path]:
        """Return the outputs of all shares, given the output of this share."""
        stem = output.stem.removesuffix(self._ending)
        if stem == output.stem:  # not named by `name_output`
            return [output]
        shares = (type(self)(number, self.total) for number in range(1, self.total + 1))
        return [share.name_output(output.with_name(stem + output.suffix)) for share in shares]

    @property
    def _ending(self) -> str:
        return f"-{self.number:05d}-of-{self.total:05d}"
