"""`make demo`, shortened: three kills under load, and a verdict that is counted from rows."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

from rich.console import Console

from examples.demo.__main__ import ACCOUNTS, CARDS, REPORTS, SUBMITTERS
from examples.demo.figures import Report, Snapshot, Verdict, read_verdict
from examples.demo.stage import RUNS
from examples.demo.view import View
from headgate.domain.states import State
from headgate.store.connect import Connection
from tests.support.recorded_screens import DEMO, shape
from tests.support.server import clean_environ

ROOT = Path(__file__).parents[2]
FINISHED = """
INSERT INTO headgate.archive (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt, max_attempts,
                              epoch, policy_no, state, flags, payload)
SELECT $1, now(), now(), now(), 1, 1, 0, 1, 20, 1, 1, $2, 0, ''"""


def test_the_demo_kills_three_processes_and_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--seconds", "0.5"],
        cwd=ROOT,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    kills = re.findall(r"kill -9 (\d+): (worker 1|the server|PostgreSQL), ([\d,]+) acknowledged\.", said)
    assert [victim for _, victim, _ in kills] == ["worker 1", "the server", "PostgreSQL"]
    assert len({pid for pid, _, _ in kills}) == 3
    ended = re.search(r"the producer ends, ([\d,]+) acknowledged", said)
    assert ended is not None, said
    acknowledged = [int(count.replace(",", "")) for count in (*(count for _, _, count in kills), ended[1])]
    # What was sent before a kill may be acknowledged after the recovery: one submit of each submitter.
    new = [after - before for before, after in pairwise(acknowledged)]
    assert min(new) > SUBMITTERS, f"no load between the kills: {acknowledged} acknowledged"
    orders = [int(total) for total in re.findall(r"^order +━*╸? +\d+ of (\d+) ", said, flags=re.MULTILINE)]
    assert len(orders) == len(kills), "the bars at each kill"
    assert orders == sorted(set(orders)), "they grow"
    verdict = re.search(r"^lost 0, run twice \d+, dead letters (\d+), of ([\d,]+) jobs$", said, flags=re.MULTILINE)
    assert verdict is not None, said
    assert int(verdict[1]) == CARDS
    assert int(verdict[2].replace(",", "")) > ACCOUNTS + CARDS + REPORTS, "orders as well"
    assert "\x1b[" not in said, "plain text without a terminal"
    assert re.search(r"^  dashboard on http://127\.0\.0\.1:\d+ while this runs$", said, flags=re.MULTILINE)
    again = f"{DEMO} shows something else; `make screens` records it"
    assert shape(f"$ make demo\n{said}") == shape(DEMO.read_text()), again


def test_a_terminal_shows_bars_that_move() -> None:
    written = io.StringIO()
    view = View(Console(file=written, force_terminal=True, force_interactive=True, color_system=None, width=100))
    report = uuid4()
    lengths = []
    with view:
        for done in (2, 6):
            at = Report(done=done, total=8, attempt=1, state=State.RUNNING)
            written.truncate(written.seek(0))
            view.show(Snapshot(counts={"report": {State.RUNNING: 1}}, reports={report: at}), 1)
            bar = re.search(r"report 1 +(━+)[╸ ]* +(\d) of 8 ", written.getvalue())
            assert bar is not None, written.getvalue()
            lengths.append((int(bar[2]), len(bar[1])))
    assert lengths == [(2, 6), (6, 18)]


async def test_the_verdict_is_what_the_rows_say(db: Connection) -> None:
    await db.execute(RUNS)
    done, twice, dead, vanished, unproven = (uuid4() for _ in range(5))

    async def ended(job_id: UUID, state: int, runs: int) -> None:
        await db.execute(FINISHED, job_id, state)
        for attempt in range(1, runs + 1):
            await db.execute("INSERT INTO demo.runs (job_id, attempt, pid) VALUES ($1, $2, 1)", job_id, attempt)

    await ended(done, 5, runs=1)
    await ended(twice, 5, runs=2)
    await ended(dead, 6, runs=0)
    held = await read_verdict(db, [done, twice, dead])
    assert held == Verdict(submitted=3, lost=0, twice=1, dead=1, failed=0, expired=0)
    assert str(held) == "lost 0, run twice 1, dead letters 1, of 3 jobs"
    assert held.holds(cards=1)
    assert not held.holds(cards=0)
    await ended(unproven, 5, runs=0)  # completed, says Headgate; no handler got to its end
    lost = await read_verdict(db, [done, twice, dead, vanished, unproven])
    assert (lost.submitted, lost.lost) == (5, 2)
    assert not lost.holds(cards=1)
