"""`make bench-docs`: docs/benchmarks.md, its plots and the figures of README.md, from bench/peers*.json alone.

When bench/latest.json exists (`make bench`), its figures are first taken into bench/peers.json, so that the checked-in
files alone always give the checked-in page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.peers import sweep
from bench.peers.page import PAGE, PLOTS, Page
from bench.peers.page_notes import is_plain
from bench.peers.readme import README
from bench.peers.results import PATH, Results, load, save

LATEST = Path("bench/latest.json")


def take_in_latest(results: Results, path: Path = LATEST) -> None:
    """The figures of the last `make bench`, as far as they are plain."""
    if path.exists():
        found = json.loads(path.read_text())
        results["own"] = {name: value for name, value in found.items() if is_plain(name, value)}


def main() -> int:
    """Write the page and the plots; plots that are no longer made go away."""
    results = load()
    take_in_latest(results)
    save(results, PATH)
    files = Page(results, sweep.load()).files()
    PLOTS.mkdir(exist_ok=True)
    for old in set(PLOTS.glob("*.svg")) - files.keys():
        old.unlink()
    for path, content in files.items():
        path.write_text(content)
    print(f"{PAGE}, {README} and {len(files) - 2} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
