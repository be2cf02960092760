"""The tree of commands, and how one command line is run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cyclopts import App, CycloptsError, Parameter

from headgate.cli.errors import (
    BUG,
    FAILURE,
    USAGE,
    UserCodeFailed,
    bug_text,
    exit_code,
    missing_extra_text,
    output_error_text,
    print_error,
    print_warning,
    usage_text,
    users_traceback_text,
)
from headgate.cli.grpc_settings import configure_grpc
from headgate.domain.errors import HeadgateError
from headgate.domain.release import version
from headgate.ops.configuration import unknown_variables

REFUSING = ("config", "dev", "doctor", "migrate", "restore-fence", "serve")
"""Commands that read settings of the server, and refuse unknown ones."""

app = App(
    name="headgate",
    help="A durable job queue whose only infrastructure is PostgreSQL.",
    version=version,
    default_parameter=Parameter(
        negative=(),  # no --no-plan beside --plan
        show_default=lambda default: None if default in ("", None, False, -1) else str(default),
    ),
)
# By name, so that a command imports only what it needs: importing gRPC and the server takes most of a second.
for _name, _where, _help in (
    ("audit", "admin:audit_command", "Show the audit log."),
    ("batch", "batch:batch", "Open, show and seal batches."),
    ("bench", "bench:bench_command", "Measure a running server with jobs that do nothing."),
    ("bulk", "bulk:bulk", "Run bulk operations on all jobs that match a filter."),
    ("completion", "completion:completion_command", "Print the completion script of a shell."),
    ("config", "config:config", "Show the settings and where each value comes from."),
    ("dead", "dead:dead", "Show, redrive and discard dead letters."),
    ("dev", "dev:dev_command", "Run an embedded PostgreSQL and a server on loopback, until Ctrl-C."),
    ("doctor", "doctor:doctor_command", "Check the database, this machine and the settings of a server."),
    ("events", "events:events_command", "Show what happens to jobs and topics, as it happens."),
    ("export", "export:export_command", "Write jobs with their payloads to a file, one per line."),
    ("import", "job_import:import_command", "Submit the jobs of a file that was exported."),
    ("init", "init:init_command", "Write a small app with a job, a schedule and a test."),
    ("job", "job:job", "Show jobs and act on them."),
    ("key", "key:key", "Create, list, rotate and revoke API keys."),
    ("migrate", "migrate:migrate_command", "Create or upgrade the database schema."),
    ("pause", "admin:pause_command", "Stop dispatching jobs for a topic, a tenant, or everything."),
    (
        "restore-fence",
        "restore_fence:restore_fence_command",
        "Run once after restoring a backup, before starting servers.",
    ),
    ("profile", "profile:profile", "Save servers and their tokens, and choose one of them."),
    ("resume", "admin:resume_command", "Resume dispatching jobs for a topic, a tenant, or everything."),
    ("retention", "retention:retention", "Show and change how long finished jobs are kept."),
    ("schedule", "schedule:schedule", "Create, show and change schedules."),
    ("serve", "serve:serve_command", "Serve workers and producers over gRPC."),
    ("stats", "stats:stats_command", "Show throughput, failures and latencies over time, and what fails now."),
    ("session", "session:session", "List and end sessions of browsers."),
    ("status", "status:status_command", "Show pauses, job counts and throughput by topic, and servers."),
    ("submit", "submit:submit_command", "Submit one job and print its id."),
    ("top", "top.command:top_command", "Show what happens in a terminal view, and act on it."),
    ("system", "system:system_command", "Show what the installation runs with."),
    ("tenant", "tenant:tenant", "Show and set quotas of tenants."),
    ("topic", "topic:topic", "Show and change settings and limits of topics."),
    ("version", "version:version_command", "Show the version."),
    ("webhook", "webhook:webhook", "Send events to HTTP endpoints, and show what was delivered."),
    ("worker", "worker:worker_command", "Run the handlers registered on a Headgate object."),
    ("workers", "workers:workers", "Show connected workers, stop or resume dispatching to one of them, or stop one."),
):
    app.command(f"headgate.cli.{_where}", name=_name, help=_help)


def _with_stdin(tokens: Sequence[str]) -> Iterator[str]:
    """Rewrite the payload `-` as `@-`: the parser would read it as an option without a name."""
    for before, given in pairwise(("", *tokens)):
        yield "@-" if given == "-" and (not before.startswith("--") or before == "--payload") else given


def _warn_of_unknown_settings(command: str) -> None:
    """Print a warning for each variable that looks like a setting and is none, unless the command refuses it."""
    if command not in REFUSING:
        for error in unknown_variables(os.environ):
            print_warning(str(error))


def _discard_output() -> None:
    """Write nothing more to standard output, not even when the interpreter flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process; Ctrl-C raises KeyboardInterrupt."""
    configure_grpc()
    if sys.stdout is None:  # closed by the caller (`>&-`): what is printed has no reader
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    tokens = [*_with_stdin(sys.argv[1:] if arguments is None else arguments)]
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without … shows a ?
        _warn_of_unknown_settings(tokens[0] if tokens else "")
        app(tokens, print_error=False, exit_on_error=False, verbose=False, result_action="return_value")
        sys.stdout.flush()  # here, so that a closed pipe is handled below
    except CycloptsError as error:
        print_error(usage_text(error))
        return USAGE
    except HeadgateError as error:
        for text in (str(error), *getattr(error, "__notes__", ())):  # a call for several jobs can have several errors
            print_error(text)
        return exit_code(error)
    except UserCodeFailed as error:
        print(error, file=sys.stderr, flush=True)
        return FAILURE
    except BrokenPipeError:
        _discard_output()  # the reader (head, less) has closed the pipe
        return 128 + 13
    except Exception as error:  # noqa: BLE001 - the outermost level: a bug is reported in one line too
        if text := missing_extra_text(error):
            print_error(text)
            return USAGE
        if text := users_traceback_text(error):
            print(text, file=sys.stderr, flush=True)
            return FAILURE
        if text := output_error_text(error):
            print_error(text)
            _discard_output()
            return FAILURE
        print_error(bug_text(error))
        return BUG
    return 0
