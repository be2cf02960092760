"""`headgate worker app.module:hg`: run the handlers registered on a Headgate object until SIGTERM or Ctrl-C."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli.configured import client_configuration, configured, log_format
from headgate.cli.connection import configured_addresses
from headgate.cli.errors import UserCodeFailed, refusal_text, traceback_text
from headgate.cli.options import DEFAULT_SERVER, App, Server
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.ops import logs
from headgate.ops.configuration import Configuration
from headgate.ops.profiles import FIELDS as PROFILE_FIELDS
from headgate.ops.settings import BY_NAME
from headgate.sdk import Headgate, JobFields, WorkerOptions
from headgate.sdk.addresses import trust_of

WORDS_OF_WORKERS: Final = ("list", "get", "quiet", "resume", "stop")


@configured("worker", refuses_unknown=False)
def worker_command(
    app: App,
    *,
    worker_id: Annotated[str, Parameter(help="Name of this worker. Default: a generated name.")] = "",
    reload: Annotated[
        bool, Parameter(help="Development: restart when a Python file below the current folder changes.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    config: Configuration,
) -> None:
    """Run a worker. --url and --token are for an application that does not name a server itself."""
    if reload:
        _watch([argument for argument in sys.argv[1:] if argument.partition("=")[0] != "--reload"])
        return
    logs.configure(
        config.text("log_level"), format=log_format(config), filters=[JobFields()], redaction=config.redaction
    )
    options: WorkerOptions = {
        "concurrency": config.integer("worker_concurrency"),
        "grace": config.span("worker_grace"),
        "job_logs": config.text("worker_job_logs"),
    }
    if chosen := config.names("worker_topics"):
        options["topics"] = chosen
    if worker_id:
        options["worker_id"] = worker_id
    load(app, server).run_worker(**options)


def load(app: str, server: Server = DEFAULT_SERVER) -> Headgate:
    """Import `package.module:name`, with the current folder on the path, as `python -m` does.

    The application creates its client when it is imported, and finds address and token in the environment.
    """
    config = client_configuration(**asdict(server))
    if config.text("url"):  # here, so that a wrong address is an error of the command line, or of the variable
        configured_addresses(config, trust_of())
    for one in PROFILE_FIELDS:  # a token of the environment may be one that the profile replaces
        os.environ.pop(BY_NAME[one].variable, None)
    os.environ.update(config.client_environment())
    module_name, _, name = app.partition(":")
    if app in WORDS_OF_WORKERS:
        raise InvalidInput("app", f'"{app}" is a command for all workers', hint=f"did you mean headgate workers {app}?")
    if not module_name or not name:
        raise InvalidInput("app", f'"{app}" is not of the form package.module:name', hint="for example: app.jobs:hg")
    if module_name.endswith(".py"):
        meant = ".".join(Path(module_name).with_suffix("").parts)
        raise InvalidInput("app", f'"{module_name}" is a file, not a module', hint=f"did you mean {meant}:{name}?")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except HeadgateError as error:  # its text says what to do, and the traceback where
        raise UserCodeFailed(refusal_text(error)) from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                "app", f'module "{module_name}" does not exist', hint="run the command in the folder of your project"
            ) from None
        raise UserCodeFailed(traceback_text(error)) from error
    found = getattr(module, name, None)
    if not isinstance(found, Headgate):
        kinds = [key for key, value in vars(module).items() if isinstance(value, Headgate)]
        hint = f"did you mean {module_name}:{kinds[0]}?" if kinds else "create one: hg = Headgate()"
        raise InvalidInput("app", f'"{name}" in {module_name} is not a Headgate object', hint=hint)
    return found


def _watch(arguments: list[str]) -> None:
    """Run a worker process, and replace it when the code changes. It drains first, so no attempt is used up."""
    # As Ctrl-C, also when the terminal is closed: the child has a session of its own, and must not outlive us.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, signal.default_int_handler)
    while True:
        # Its own session: Ctrl-C in a terminal reaches it through us, so once and not twice.
        child = subprocess.Popen([sys.executable, "-m", "headgate.cli", *arguments], start_new_session=True)
        try:
            if not _changed(child):
                return
        except KeyboardInterrupt:
            _interrupt(child)
            return


def _changed(child: subprocess.Popen[bytes]) -> bool:
    """Wait until the code has changed and the worker has ended; False if it was stopped, and is not to be replaced."""
    before = _stamps()
    while child.poll() is None and _stamps() == before:
        time.sleep(0.5)
    if child.poll() == 0:
        return False  # by an operator, or by a signal of its own
    if child.poll() is not None:
        while _stamps() == before:  # it exited, for example after a syntax error: wait for the next change
            time.sleep(0.5)
    else:
        print("headgate worker: code changed, restarting", file=sys.stderr, flush=True)
        child.terminate()
        child.wait()
    return True


def _interrupt(child: subprocess.Popen[bytes]) -> None:
    """Pass on each Ctrl-C: the first one drains the worker, the second one does not wait for handlers."""
    while True:
        child.send_signal(signal.SIGINT)
        try:
            child.wait()
        except KeyboardInterrupt:
            continue
        return


def _stamps() -> dict[str, int]:
    stamps: dict[str, int] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [
            name for name in folders if not name.startswith((".", "__")) and name not in ("node_modules", "build")
        ]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    stamps[path] = os.stat(path).st_mtime_ns
                except OSError:
                    continue
    return stamps
