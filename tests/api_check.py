"""Generated requests for every operation of the OpenAPI document, against a real server: `make api-check`.

schemathesis sends valid and invalid values for each parameter and field, other methods, and no or bad tokens. A server
error, an answer that the document does not describe, an invalid value that is accepted, or a route without a login
fails the run. So does an error in the log of the server.

Requests by a token that may do everything in its tenant come one by one and, beside that, in sequences by the links of
the document: a job is submitted, and this one is read, moved and cancelled. Then a token with the scope `system` calls
the operations that accept it; some of them answer 403 to the first.

Two operations are left out, since they may take as long as they like: a claim waits for jobs, and the stream of events
has no end. tests/e2e/test_http_workers.py has their cases. Operations that wait for the end of a job are called with a
wait of 20 ms: no job ends here, and no result depends on how long something takes. What takes most of the time are the
answers to requests without a login, which the server holds back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from headgate.api.http.app import ROUTES
from headgate.api.http.auth import OPERATION, RULE
from headgate.control.permissions import RULES
from headgate.domain.identity import Scope
from tests.support.database import running_server
from tests.support.server import ServerProcess, clean_environ
from tests.support.wire import served

SECONDS, SEQUENCE_SECONDS, SYSTEM_SECONDS = 240, 100, 60
EXAMPLES = 8
SEQUENCES = 60
TOKEN, SYSTEM_TOKEN = "token-of-the-api-check", "system-token-of-the-api-check"
ENDLESS = ("claim_jobs", "follow_events")
SETTINGS = f"""
# Nothing waits for as long as this; a machine may stall.
request-timeout = 60.0
# Not more: threads meet an error of CPython 3.11 in ast.parse ("AST constructor recursion depth mismatch").
workers = 1
continue-on-failure = true
seed = 1

[generation]
max-examples = {EXAMPLES}
database = "none"

[phases.stateful]
max-steps = 5

[phases.stateful.generation]
max-examples = {SEQUENCES}

[parameters]
wait_seconds = 0.02
"body.filter" = {{ dictionary = "filters", probability = 0.8 }}

[dictionaries.filters]
values = ["topic:mail", "state:dead topic:mail", "tag:x", "state:pending", "priority:>3"]

[checks.positive_data_acceptance]
# What the schema cannot say: a cron expression, a filter, a time that has passed, a job that does not exist.
expected-statuses = ["2xx", "304", "400", "403", "404", "409", "413", "429"]

[checks.negative_data_rejection]
expected-statuses = ["400", "403", "404", "405", "409", "413", "415", "422"]
"""


def main() -> int:
    """Returns the exit code of schemathesis, or 1 if the server has logged an error."""
    with tempfile.TemporaryDirectory(prefix="headgate-api-check-") as made, running_server() as postgres:
        folder = Path(made)
        tokens = folder / "tokens.json"
        tokens.write_text(
            json.dumps(
                {
                    TOKEN: {"tenant": "check", "name": "api check", "scopes": ["admin"]},
                    SYSTEM_TOKEN: {"name": "api check of the system", "scopes": ["system"]},
                }
            )
        )
        (folder / "schemathesis.toml").write_text(SETTINGS)
        arguments = ("--http-port", "0", "--tokens", str(tokens))
        with served(postgres, postgres.create_template(), folder, *arguments, dev=False) as (server, _):
            in_tenant = [part for one in ENDLESS for part in ("--exclude-operation-id", one)]
            of_system = [part for one in sorted(_of_system()) for part in ("--include-operation-id", one)]
            runs = [
                _Run(server, folder, TOKEN, ["--phases", "examples,coverage,fuzzing", *in_tenant], seconds=SECONDS),
                _Run(server, folder, TOKEN, ["--phases", "stateful", *in_tenant], seconds=SEQUENCE_SECONDS),
            ]
            codes = [run.code() for run in runs]
            codes.append(_Run(server, folder, SYSTEM_TOKEN, of_system, seconds=SYSTEM_SECONDS).code())
            faults = server.seen("^.*(?:Traceback|ERROR|CRITICAL).*$")
            for fault in faults[:5]:
                sys.stderr.write(f"the server has logged: {fault[0]}\n")
            return max(*codes, 1 if faults else 0)


def _of_system() -> set[str]:
    """Operations that a token with the scope system may call."""
    options = [route.opt for route in ROUTES if RULE in route.opt]
    return {one[OPERATION] for one in options if Scope.SYSTEM in RULES[one[RULE]].scopes}


class _Run:
    """Generated requests for the chosen operations, by a process of its own."""

    def __init__(self, server: ServerProcess, folder: Path, token: str, chosen: list[str], *, seconds: int) -> None:
        self._seconds = seconds
        self._output = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        self._process = subprocess.Popen(
            [
                *(Path(sys.executable).with_name("st"), "--config-file", folder / "schemathesis.toml", "run"),
                *chosen,
                *("-H", f"Authorization: Bearer {token}", "--max-time", str(seconds), "--no-color"),
                f"{server.http_url}/v1/openapi.json",
            ],
            env={**clean_environ(), "NO_PROXY": "*"},
            cwd=folder,
            stdout=self._output.open("wb"),
            stderr=subprocess.STDOUT,
        )

    def code(self) -> int:
        """Wait for its end, and print what it has printed; the exit code of schemathesis."""
        try:
            return self._process.wait(timeout=2 * self._seconds)
        finally:
            self._process.kill()
            sys.stdout.write(self._output.read_text())


if __name__ == "__main__":
    sys.exit(main())
