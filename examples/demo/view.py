"""What the demo shows: bars that move on a terminal; elsewhere one line a second, and the bars at each kill."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from examples.demo.figures import TOPICS, Snapshot
from headgate.domain.states import State

NOTES: Final = {
    "order": "short, steady load",
    "account": "flaky, retried",
    "report": "long, with progress",
    "card": "always fails",
}
_LINE_SECONDS: Final = 1.0


class ProducerLog(logging.Handler):
    """What the SDK logs in the process of the demo, which is the producer, as lines of the screen."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Any thread may log; the console has a lock."""
        self._view.say(f"producer: {record.getMessage()}", style="dim")


class View:
    """The screen; `say` writes a line that stays, `show` replaces the bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._began = time.monotonic()
        self._next_line = 0.0
        self._last: Snapshot | None = None
        self._log = ProducerLog(self)

    def __enter__(self) -> Self:
        logging.getLogger("headgate").addHandler(self._log)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("headgate").removeHandler(self._log)
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, text: str, *, style: str = "") -> None:
        """A line with its time, above the bars."""
        self.console.print(Text(f"{self.elapsed:5.1f} s  {text}", style=style), highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot | None, acknowledged: int) -> None:
        """Show where the jobs are; None: the database cannot be read now."""
        self._last = snapshot or self._last
        if self._live is not None:
            if snapshot is not None:
                self._live.update(Group(Text(""), _bars(snapshot), _totals(snapshot, acknowledged)), refresh=True)
        elif self.elapsed >= self._next_line:
            self._next_line = self.elapsed + _LINE_SECONDS
            self.say("PostgreSQL does not answer" if snapshot is None else _totals(snapshot, acknowledged).plain)

    def say_bars(self) -> None:
        """Without a terminal: the bars as they are now, as lines that stay."""
        if self._live is None and self._last is not None:
            with self.console.capture() as drawn:
                self.console.print(_bars(self._last))
            for line in drawn.get().splitlines():
                self.console.print(Text(line.rstrip()), soft_wrap=True)


def _bars(snapshot: Snapshot) -> Progress:
    bars = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(24),
        TextColumn("{task.completed:>5.0f} of {task.total:<5.0f}"),
        TextColumn("[dim]{task.fields[note]}[/]"),
    )
    for topic in TOPICS:
        states = snapshot.counts.get(topic, {})
        ended = sum(n for state, n in states.items() if state.is_final)
        notes = [f"{n} {state.label}" for state, n in sorted(states.items()) if state is not State.COMPLETED]
        bars.add_task(topic, total=max(1, sum(states.values())), completed=ended, note=", ".join(notes) or NOTES[topic])
    for number, (_, one) in enumerate(sorted(snapshot.reports.items()), 1):
        total = max(1, one.total)  # 0 before its first report
        done = total if one.state is State.COMPLETED else one.done
        again = f", attempt {one.attempt}" if one.attempt > 1 else ""
        bars.add_task(f"  report {number}", total=total, completed=done, note=f"{one.state.label}{again}")
    return bars


def _totals(snapshot: Snapshot, acknowledged: int) -> Text:
    done, waiting = snapshot.total(final=True), snapshot.total(final=False)
    return Text(f"submitted and acknowledged {acknowledged:,}   ended {done:,}   not ended yet {waiting:,}")
