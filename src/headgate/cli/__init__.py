"""The `headgate` command: one module per noun, one table of exit codes (errors.py)."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cyclopts import App, CycloptsError, Parameter

from headgate.cli.errors import BUG, INTERRUPTED, USAGE, bug_text, complain, exit_code, missing_server_text, usage_text
from headgate.cli.polling import poll_with_one_thread
from headgate.domain.errors import HeadgateError
from headgate.ops.settings import version

app = App(
    name="headgate",
    help="A durable job queue whose only infrastructure is PostgreSQL.",
    version=version,
    default_parameter=Parameter(negative=()),  # --plan, but no --no-plan
)
# By name, so that a command imports only what it needs: gRPC and the server cost most of a second.
for _name, _where, _help in (
    ("audit", "dispatch:audit_command", "Show who changed what."),
    ("batch", "batch:batch", "Look at batches."),
    ("bench", "bench:bench_command", "Measure a running server, with jobs that do nothing."),
    ("dead", "dead:dead", "Dead letters by their kind; redrive or discard them."),
    ("dev", "dev:dev_command", "An embedded PostgreSQL and a server on loopback, until Ctrl-C."),
    ("job", "job:job", "Look at jobs, and act on them."),
    ("migrate", "migrate:migrate_command", "Bring the database schema to this release."),
    ("op", "op:op", "Operations over everything a filter matches."),
    ("pause", "dispatch:pause_command", "Hand out no more jobs of a topic, a tenant, or everybody."),
    (
        "restore-fence",
        "restore_fence:restore_fence_command",
        "Once after the database came back older than it was: before servers start.",
    ),
    ("retention", "retention:retention", "How long finished jobs are kept."),
    ("resume", "dispatch:resume_command", "Hand them out again."),
    ("schedule", "schedule:schedule", "Make jobs at given times."),
    ("serve", "serve:serve_command", "Serve workers and producers over gRPC."),
    ("status", "dispatch:status_command", "What is paused, what waits, and which servers there are."),
    ("submit", "submit:submit_command", "Submit one job and print its id."),
    ("topic", "topic:topic", "Rules and limits of topics."),
    ("worker", "worker:worker_command", "Run the jobs registered on a Headgate object."),
    ("workers", "workers:workers", "Look at connected workers, and keep some from work."),
):
    app.command(f"headgate.cli.{_where}", name=_name, help=_help)


def _with_stdin(tokens: Sequence[str]) -> Iterator[str]:
    """`-` for a payload, as `@-`: the parser would take it for an option without a name."""
    for before, word in pairwise(("", *tokens)):
        yield "@-" if word == "-" and (not before.startswith("--") or before == "--payload") else word


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process."""
    poll_with_one_thread()
    tokens = [*_with_stdin(sys.argv[1:] if arguments is None else arguments)]
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that knows no … gets a ? and no crash
        app(tokens, print_error=False, exit_on_error=False, verbose=False, result_action="return_value")
        sys.stdout.flush()  # here, where a closed pipe can still be answered, and not while the interpreter ends
    except CycloptsError as error:
        complain(usage_text(error))
        return USAGE
    except HeadgateError as error:
        for text in (str(error), *getattr(error, "__notes__", ())):  # a call for several things may have several
            complain(text)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough: write nothing more, not even in the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except Exception as error:  # noqa: BLE001 - the outermost place: a bug is told in one line too
        if text := missing_server_text(error):
            complain(text)
            return USAGE
        complain(bug_text(error))
        return BUG
    return 0
