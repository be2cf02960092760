"""Horizontal bars as SVG, without any library: readable in light and in dark mode, ours highlighted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABELS, VALUES = 820, 170, 200
ROW, BAR, TOP = 24, 15, 62
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .note, .tick { font-size: 11px; fill: #59636e }
  .ours { font-weight: 700 }
  line { stroke: #d1d9e0 }
  .bar { fill: #8b9bab } .bar.redis { fill: #c98a7d } .bar.ours { fill: #1a7f5a }
  .bar.light { opacity: .45 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note, .tick { fill: #9198a1 } line { stroke: #3d444d }
    .bar { fill: #7d8b99 } .bar.redis { fill: #b87466 } .bar.ours { fill: #3fb98a }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bar, and behind it a longer lighter one if `beyond` is given."""

    label: str
    value: float
    text: str
    kind: str = ""
    """"ours", "redis" or nothing."""
    beyond: float | None = None


def bars(title: str, note: str, rows: Sequence[Row], *, logarithmic: bool = False) -> str:
    """The picture as text; the same rows always give the same text."""
    longest = max(max(row.value, row.beyond or 0) for row in rows)
    least = min(row.value for row in rows)
    floor = 10 ** math.floor(math.log10(least)) if logarithmic and least > 0 else 0.0
    room = WIDTH - LABELS - VALUES

    def length(value: float) -> float:
        if not logarithmic:
            return room * value / longest
        return room * math.log10(max(value, floor) / floor) / math.log10(longest / floor) if longest > floor else room

    height = TOP + ROW * len(rows) + 24
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text class="note" x="12" y="43">{escape(note)}</text>',
    ]
    for tick in _ticks(floor, longest, logarithmic=logarithmic):
        x = LABELS + length(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 22}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick:,.10g}</text>')
    for place, row in enumerate(rows):
        y = TOP + ROW * place
        kind = f" {row.kind}" if row.kind else ""
        bold = ' class="ours"' if row.kind == "ours" else ""
        middle = y + BAR - 3
        parts.append(f'<text{bold} x="{LABELS - 8}" y="{middle}" text-anchor="end">{escape(row.label)}</text>')
        end = length(row.value)
        if row.beyond is not None:
            end = length(row.beyond)
            parts.append(
                f'<rect class="bar{kind} light" x="{LABELS}" y="{y}" width="{max(end, 1):.1f}" height="{BAR}" rx="2"/>'
            )
        parts.append(
            f'<rect class="bar{kind}" x="{LABELS}" y="{y}" width="{max(length(row.value), 1):.1f}" '
            f'height="{BAR}" rx="2"/>'
        )
        parts.append(f'<text{bold} x="{LABELS + max(end, 1) + 6:.1f}" y="{middle}">{escape(row.text)}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _ticks(floor: float, longest: float, *, logarithmic: bool) -> list[float]:
    """Round numbers along the axis."""
    if logarithmic:
        count = int(math.log10(longest / floor)) if floor else 0
        return [floor * 10**power for power in range(count + 1)]
    step = 10 ** math.floor(math.log10(longest))
    for finer in (0.2, 0.5, 1.0):
        if longest / (step * finer) <= 6:
            step *= finer
            break
    return [step * number for number in range(int(longest / step) + 1)]
