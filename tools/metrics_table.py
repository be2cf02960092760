"""Rewrite the table of docs/operations/metrics.md from the definitions: `python -m tools.metrics_table`."""

from __future__ import annotations

from pathlib import Path

from headgate.ops.metric_names import table

PAGE = Path(__file__).parents[1] / "docs/operations/metrics.md"


def main() -> None:
    """Replace the table."""
    text = PAGE.read_text()
    start = text.index("| metric | type |")
    PAGE.write_text(text[:start] + table() + text[text.index("\n## ", start) :])


if __name__ == "__main__":
    main()
