"""What readers pass over: counted by what it is, and told in one place.

A reader takes, refuses or counts what it meets. What it counts travels with the plan to the
terminal, to `--dry-run`, to a backfill's plan and to `--json`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sam2_core.redaction import one_line
from tasks.wording import counted

_SHOWN = 3


@dataclass
class PassedOver:
    """What a source, or a file of boxes, holds that is not read.

    Attributes:
        where: the source or file, for people: without secrets.
        counts: how many there are of each kind, which is a noun and its plural.
        examples: of each kind a few names or endings.

    """

    where: str = ""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, noun: str, plural: str = "", *, example: str = "", count: int = 1) -> None:
        """Count what is passed over.

        Args:
            noun: what it is: "file that looks like video".
            plural: of the noun, by default with an s.
            example: name or ending of one of them, as it is.
            count: how many they are.

        """
        kind = noun, plural or f"{noun}s"
        self.counts[kind] += count
        # Whatever the order in which names come, the same ones are told.
        known = {*self.examples.get(kind, ()), example} - {""}
        self.examples[kind] = sorted(known)[: _SHOWN + 1]

    @property
    def text(self) -> str:
        """Return "passed over: 2 crowds (17), 1 empty folder"; "" for nothing."""
        told = [
            f"{counted(count, *kind)}{self._some(kind)}"
            for kind, count in sorted(self.counts.items())
        ]
        return f"passed over: {', '.join(told)}" if told else ""

    def _some(self, kind: tuple[str, str]) -> str:
        names = [one_line(name) for name in self.examples.get(kind, ())]
        more = ", ..." if len(names) > _SHOWN else ""
        return f" ({', '.join(names[:_SHOWN])}{more})" if names else ""


def passed_over_in(where: str, found: list[PassedOver]) -> PassedOver:
    """Return the entry of a source or file, a new one where it has none."""
    for entry in found:
        if entry.where == where:
            return entry
    found.append(PassedOver(where))
    return found[-1]


def passed_over_lines(found: Iterable[PassedOver]) -> Iterator[str]:
    """Yield a line for each source or file of which something is passed over."""
    yield from (f"{one_line(entry.where)}: {entry.text}" for entry in found if entry.text)


def passed_over_json(found: Iterable[PassedOver]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [
        {
            "where": entry.where, "what": kind[1], "count": count,
            "examples": entry.examples.get(kind, [])[:_SHOWN],
        }
        for entry in found for kind, count in sorted(entry.counts.items())
    ]  # fmt: skip
