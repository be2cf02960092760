"""Runs the demo: real processes for server and worker, an embedded PostgreSQL, a live view, a summary."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from headgate import embedded
from headgate.store.connect import connect
from headgate.store.migrate import migrate
from headgate.store.roles import OWNER, RUNTIME, prepare_embedded


def main() -> int:
    """Set the stage, play, clean up. Exit code 0 when every job ended as it should."""
    console = Console()
    root = Path(__file__).parents[2]
    folder = Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        console.print("[bold]Headgate demo[/]: PostgreSQL, a server and a worker, all of its own")
        cluster = stack.enter_context(embedded.start(folder / "postgres"))
        console.print(f"  PostgreSQL {cluster.version} is up, with fsync on")
        asyncio.run(prepare_embedded(cluster.dsn()))
        asyncio.run(_migrate(cluster.dsn(role=OWNER)))
        environ = os.environ | {"HEADGATE_DATABASE_URL": cluster.dsn(role=RUNTIME)}
        server, address = start_server(root, environ, folder, stack)
        environ["HEADGATE_URL"] = address
        console.print(f"  server ready on {address}  (pid {server.pid})")
        worker = start(
            [sys.executable, "-m", "headgate.cli", "worker", "examples.demo.jobs:hg"], root, environ, folder, stack
        )
        console.print(f"  worker started, 32 slots    (pid {worker.pid})\n")
        os.environ["HEADGATE_URL"] = address
        from examples.demo.play import play  # its Headgate() reads the address when it is made

        return asyncio.run(play(cluster.dsn(role=OWNER), console))


async def _migrate(dsn: str) -> None:
    db = await connect(dsn, application_name="headgate demo")
    try:
        await migrate(db)
    finally:
        await db.close()


def start(
    command: list[str], root: Path, environ: dict[str, str], folder: Path, stack: ExitStack
) -> subprocess.Popen[str]:
    """Start a process that ends with the demo, also when the demo is interrupted."""
    log = stack.enter_context((folder / f"{len(list(folder.iterdir()))}.log").open("w"))
    process = subprocess.Popen(command, cwd=root, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    """Ask, then insist."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def start_server(
    root: Path, environ: dict[str, str], folder: Path, stack: ExitStack
) -> tuple[subprocess.Popen[str], str]:
    """Start the server on a free port, and wait until it says where it is."""
    command = [sys.executable, "-m", "headgate.cli", "serve", "--dev", "--port", "0", "--grace", "3"]
    server = start(command, root, environ, folder, stack)
    line = server.stdout.readline() if server.stdout else ""
    if " ready on " not in line:
        raise SystemExit(f"the server did not start: {line or 'see its log'}")
    return server, line.rsplit(" ", 1)[1].strip()


if __name__ == "__main__":
    sys.exit(main())
