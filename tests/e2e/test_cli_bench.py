"""`headgate bench` against a real server: what it prints, what it refuses, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.store.connect import connect
from tests.e2e.conftest import Serve
from tests.support import forks
from tests.support.server import clean_environ

SMALL = ("--jobs", "300", "--rounds", "2", "--singles", "5", "--seconds", "60s")
TOKEN = "a-token-of-whoever-measures"
FIGURES = {"submit", "drain", "cycle", "pickup_p50_ms", "pickup_p99_ms"}


def bench(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return forks.headgate("bench", *arguments, environ=clean_environ() | environ, seconds=80)


async def states(dsn: str) -> dict[tuple[str, int], int]:
    """How many jobs of each topic are in each state, ended ones too."""
    db = await connect(dsn, application_name="headgate test")
    try:
        rows = await db.fetch(
            "SELECT t.name, j.state, count(*) FROM (SELECT topic_no, state FROM headgate.jobs UNION ALL "
            "SELECT topic_no, state FROM headgate.archive) AS j JOIN headgate.topics t USING (topic_no) GROUP BY 1, 2"
        )
    finally:
        await db.close()
    return {(row[0], row[1]): row[2] for row in rows}


async def test_a_running_server_is_measured_and_the_report_names_what_stays(serve: Serve, database: str) -> None:
    server = serve()
    done = bench(*SMALL, "--url", server.address)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("1 server(s); 2 round(s) of 300 jobs of 100 bytes")
    assert [line.split("  ")[0] for line in lines[2:7]] == ["submit", "drain", "cycle", "pickup p50", "pickup p99"]
    count = 2 * 2 * 300 + 20 + 5
    assert (
        lines[7]
        == f'{count:,} completed jobs stay in the archive of topic "headgate-bench" until retention removes them'
    )
    assert await states(database) == {("headgate-bench", 5): count}

    again = bench(*SMALL, "--output", "json", "--topic", "other", HEADGATE_URL=server.address)
    told = json.loads(again.stdout)
    assert told.pop("topic") == "other"
    assert told.pop("jobs_submitted") == count
    assert told.keys() == FIGURES
    for figure in told.values():
        assert 0 < figure["min"] <= figure["max"]


async def test_it_refuses_where_jobs_live_and_where_none_would_run(serve: Serve, database: str) -> None:
    server = serve()
    async with Headgate(server.address) as hg:
        await hg.submit("mine", b"")
        refused = bench(*SMALL, "--url", server.address, "--topic", "mine")
        assert refused.returncode == 4
        assert refused.stderr == (
            'error: topic "mine" has 1 live jobs; wait until they have ended, or pass another --topic\n'
        )
        await hg.admin.pause(everything=True)
        paused = bench(*SMALL, "--url", server.address)
        assert (paused.returncode, paused.stderr) == (
            4,
            "error: everything is paused, so no job would run; resume it first\n",
        )
    assert await states(database) == {("mine", 0): 1}


async def test_it_takes_back_what_did_not_run(serve: Serve, database: str) -> None:
    """A topic that lets one job start in an hour: the time is up before the jobs have run."""
    server = serve()
    limited = forks.headgate(
        *("topic", "set", "headgate-bench", "--rate", "1/1h:1", "--url", server.address), environ=clean_environ()
    )
    assert limited.returncode == 0, limited.stderr
    ended = bench("--jobs", "50", "--rounds", "1", "--seconds", "3s", "--url", server.address)
    assert ended.returncode == 4, ended.stdout
    told, why = ended.stderr.splitlines()
    assert told == 'ended early: removed 49 jobs from topic "headgate-bench"'
    assert why.startswith('error: of 50 jobs on topic "headgate-bench" this worker completed 1 in the time given; pass')
    assert await states(database) == {("headgate-bench", 5): 1}


def test_a_token_is_needed_and_used(serve: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    scopes = ["submit", "work", "read", "operate"]
    tokens.write_text(json.dumps({TOKEN: {"tenant": "alpha", "name": "ben", "scopes": scopes}}))
    server = serve("--tokens", str(tokens))
    assert bench(*SMALL, "--url", server.address).returncode not in (0, 70)
    done = bench(*SMALL, "--url", server.address, "--token", TOKEN)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--jobs", "0"), "--jobs"),
        (("--seconds", "2h"), "--seconds"),
        (("--topic", "no topic!"), "topic"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments: tuple[str, ...], complaint: str) -> None:
    done = bench(*arguments, "--url", "127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr
