"""What was found: facts, checks and figures, each with its bound; as a table, as JSON, as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

#: What is written: everything, and a picture.
RESULTS = ("results.json", "results.svg")


@dataclass(frozen=True)
class ProofCheck:
    """Something that is right, or is not."""

    name: str
    cases: int
    failure: str = ""  # the first one, in words; empty: there was none


@dataclass(frozen=True)
class ProofFigure:
    """One measured number."""

    part: str
    name: str
    value: float
    unit: str
    of: float | None = None  # the ceiling measured in the same run, in the same unit
    at_least: float | None = None  # of that ceiling; with no ceiling, of the value itself
    note: str = ""
    at_most: float | None = None  # likewise

    @property
    def share(self) -> float:
        """What the bound is about."""
        return self.value if self.of is None else self.value / self.of

    @property
    def holds(self) -> bool | None:
        """None where there is no bound."""
        if self.at_least is None and self.at_most is None:
            return None
        enough = self.at_least is None or self.share >= self.at_least
        return enough and (self.at_most is None or self.share <= self.at_most)


@dataclass
class Findings:
    """Filled part by part; whatever interrupts it, what is there is true."""

    facts: dict[str, Any]
    checks: list[ProofCheck] = field(default_factory=list)
    figures: list[ProofFigure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # part -> why

    @property
    def wrong(self) -> list[ProofCheck]:
        return [check for check in self.checks if check.failure]

    @property
    def missed(self) -> list[ProofFigure]:
        return [figure for figure in self.figures if figure.holds is False]

    def save(self, folder: Path) -> None:
        """`RESULTS`."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = json.dumps(self.as_json(), indent=1) + "\n", picture(self.figures)
        for name, content in zip(RESULTS, contents, strict=True):
            (folder / name).write_text(content)

    def as_json(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "checks": [asdict(check) for check in self.checks],
            "figures": [{**asdict(figure), "share": figure.share, "holds": figure.holds} for figure in self.figures],
            "left_out": self.left_out,
        }


def line(found: ProofCheck | ProofFigure) -> str:
    """One line of the table."""
    if isinstance(found, ProofCheck):
        return (
            f"{'WRONG' if found.failure else 'right':6} {found.name:58} {found.cases:6} cases  {found.failure}".rstrip()
        )
    said = {True: "holds", False: "MISSED", None: ""}[found.holds]
    share = "" if found.of is None else f"{found.share:6.3f} of {found.of:.4g}"
    bounds = ((">=", found.at_least), ("<=", found.at_most))
    bound = " ".join(f"({sign} {limit:g})" for sign, limit in bounds if limit is not None)
    return f"{said:6} {found.name:58} {found.value:10.4g} {found.unit:6} {share:18} {bound} {found.note}".rstrip()


class LeftOutError(Exception):
    """A part cannot be run here; says why."""


#: Of the picture, in pixels.
_ROW, _LEFT, _WIDE = 18, 420, 480


def picture(figures: Sequence[ProofFigure]) -> str:
    """Every figure that has a ceiling, as a bar of it, with the bound as a line: an SVG."""
    shown = [figure for figure in figures if figure.of is not None]
    most = max([1.0, *(figure.share for figure in shown)])
    scale = _WIDE / most
    rows = []
    for number, figure in enumerate(shown):
        top = 30 + number * _ROW
        colour = "#c0392b" if figure.holds is False else "#2e86c1"
        rows.append(f'<text x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">{escape(figure.name)}</text>')
        rows.append(
            f'<rect x="{_LEFT}" y="{top + 2}" width="{figure.share * scale:.1f}" height="{_ROW - 5}" fill="{colour}"/>'
        )
        rows.append(f'<text x="{_LEFT + figure.share * scale + 4:.1f}" y="{top + 12}">{figure.share:.2f}</text>')
        if figure.at_least is not None:
            at = _LEFT + figure.at_least * scale
            rows.append(f'<path d="M{at:.1f} {top}v{_ROW - 1}" stroke="black" stroke-width="1.5"/>')
    height = 40 + len(shown) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDE + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="18" font-weight="bold">share of the ceiling of the same run; line: the bound</text>'
        + "".join(rows)
        + "</svg>\n"
    )
