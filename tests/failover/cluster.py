"""Patroni, etcd and two or three PostgreSQL on loopback, each node with ports of its own, and what can be done to them.

The configuration is the one printed in docs/operations: only addresses and folders are replaced.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypedDict, TypeVar

import asyncpg

from tests.failover.packages import Programs
from tests.support.database import temporary_folder
from tests.support.pgbouncer import free_port
from tests.support.server import LoggedProcess, clean_environ
from tests.support.waiting import until

T = TypeVar("T")
CONFIG = Path(__file__).parents[2] / "docs/operations/ha"
PAGE = CONFIG.parent / "high-availability.md"
SUPERUSER_PASSWORD = "change-me"
_TABLE = "headgate_failover"


class Member(TypedDict, total=False):
    """One node as Patroni's REST interface shows it."""

    name: str
    role: str
    state: str
    timeline: int
    lag: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How commits are replicated."""

    synchronous: bool

    def applied_to(self, text: str) -> str:
        """The configuration with this mode."""
        if self.synchronous:
            return text
        # A standby may be behind by this much and still be promoted: what asynchronous replication may lose.
        lag = f"synchronous_mode: false\n    maximum_lag_on_failover: {64 << 20}"
        changes = {"synchronous_mode_strict: true": "synchronous_mode_strict: false", "synchronous_mode: true": lag}
        return replaced(text, changes)


SYNCHRONOUS = Mode(synchronous=True)
ASYNCHRONOUS = Mode(synchronous=False)


def replaced(text: str, changes: dict[str, str]) -> str:
    """The text with each word replaced; a word that is not there is an error, for then the page has changed."""
    for old, new in changes.items():
        if old not in text:
            raise AssertionError(f"the printed configuration has no {old!r}")
        text = text.replace(old, new)
    return text


def printed_command(program: str) -> list[str]:
    """The command line of this program that the documentation prints, in words."""
    found = re.search(rf"^\$ ({re.escape(program)}( .*)?)$", PAGE.read_text(), flags=re.MULTILINE)
    assert found is not None, f"{PAGE} prints no {program}"
    return found[1].split()


def as_account(programs: Programs, account: pwd.struct_passwd) -> list[str]:
    """What to put before a command so that it runs as someone else, under the same pid."""
    who = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--clear-groups"]
    return [programs.setpriv, *who, "--"]


class Node:
    """One machine of the cluster: a Patroni and its PostgreSQL."""

    def __init__(self, name: str, cluster: Cluster, etcd_port: int) -> None:
        self.name, self._cluster = name, cluster
        self.port, self.api_port, self.etcd_port = free_port(), free_port(), etcd_port
        self.folder = cluster.folder / name
        self.folder.mkdir(mode=0o700)
        self.data = self.folder / "data"
        self._config = self.folder / "patroni.yml"
        self._config.write_text(cluster.mode.applied_to(self._patroni_config()))
        shutil.chown(self.folder, cluster.account.pw_uid, cluster.account.pw_gid)
        self.process: LoggedProcess | None = None

    def _patroni_config(self) -> str:
        text = (CONFIG / "patroni.yml").read_text()
        if self._cluster.programs.etcd_by_version_2:
            text = replaced(text, {"etcd3:": "etcd:"})
        return replaced(
            text,
            {
                "name: pg1": f"name: {self.name}",
                "10.0.0.11:8008": f"127.0.0.1:{self.api_port}",
                # Each node has its own port to etcd, so that it can be cut off alone; as a proxy, because Patroni
                # would otherwise ask etcd for its address and go there.
                "hosts: 10.0.0.21:2379": f"hosts: 127.0.0.1:{self.etcd_port}\n  use_proxies: true",
                "10.0.0.11:5432": f"127.0.0.1:{self.port}",
                "/var/lib/postgresql/headgate": str(self.data),
                "/usr/lib/postgresql/15/bin": str(self._cluster.programs.postgres_bin),
                "/var/lib/postgresql/.pgpass-headgate": str(self.folder / "pgpass"),
                "/var/run/postgresql": str(self.folder),
                "10.0.0.0/24": "127.0.0.1/32",
                "mode: automatic": "mode: off",  # the machine that runs the tests must not be reset
            },
        )

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL: first of all, or as a standby, rewound if need be."""
        command = [*as_account(self._cluster.programs, self._cluster.account), self._cluster.programs.patroni]
        environ = {**clean_environ(), "HOME": str(self.folder), "PYTHONPATH": "", "LC_ALL": "C.UTF-8"}
        self.process = LoggedProcess("patroni", [*command, self._config], folder=self.folder, environ=environ)

    def postmaster(self) -> int | None:
        """The pid of its PostgreSQL."""
        with suppress(OSError, ValueError, IndexError):
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
            if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def postgres_pids(self) -> list[int]:
        """The postmaster and its children."""
        pid = self.postmaster()
        return [] if pid is None else [pid, *_children(pid)]

    def kill(self) -> None:
        """The machine loses its power: Patroni and every process of PostgreSQL are gone, none says farewell."""
        if self.process is not None:
            self.process.kill()
            self.process = None
        postmaster = self.postmaster()
        if postmaster is None:
            return
        os.kill(postmaster, signal.SIGSTOP)  # so that it starts no one new meanwhile
        for pid in [*_children(postmaster), postmaster]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{postmaster}").exists(), f"the PostgreSQL of {self.name} is gone")

    def stop(self) -> None:
        """End both. PostgreSQL by itself, though at once: killed, it would leave its shared memory behind."""
        self.signal(signal.SIGCONT, patroni=True, postgres=True)
        if self.process is not None:
            self.process.kill()
            self.process = None
        postmaster = self.postmaster()
        if postmaster is not None:
            os.kill(postmaster, signal.SIGQUIT)
            with suppress(AssertionError):
                until(lambda: not Path(f"/proc/{postmaster}").exists(), "it is gone", within=timedelta(seconds=10))
        self.kill()

    def wal_receiver(self) -> int:
        """The process through which a standby gets its log."""
        for pid in self.postgres_pids():
            with suppress(OSError):
                if b"walreceiver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        raise AssertionError(f"{self.name} has no walreceiver")

    def signal(self, number: signal.Signals, *, patroni: bool = False, postgres: bool = False) -> None:
        """Stop or continue parts of it."""
        if patroni and self.process is not None:
            self.process.signal(number)
        for pid in self.postgres_pids() if postgres else []:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def url(self, *, database: str = "postgres", user: str = "postgres", password: str = SUPERUSER_PASSWORD) -> str:
        """To this node, whatever its role."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    async def fetch(self, query: str, *args: object, database: str = "postgres") -> list[asyncpg.Record]:
        """Ask this node as the superuser."""
        db = await asyncpg.connect(self.url(database=database), timeout=5, command_timeout=20)
        try:
            return await db.fetch(query, *args)
        finally:
            await db.close(timeout=5)


class Cluster:
    """etcd and its nodes."""

    def __init__(self, programs: Programs, folder: Path, mode: Mode, *, nodes: int) -> None:
        self.programs, self.folder, self.mode = programs, folder, mode
        self.account = pwd.getpwnam("postgres")
        self.etcd: LoggedProcess | None = None
        ports = [free_port() for _ in range(nodes)]
        self._start_etcd(ports)
        self.nodes = [Node(f"pg{number}", self, port) for number, port in enumerate(ports, start=1)]

    def _start_etcd(self, ports: Sequence[int]) -> None:
        urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        peer = f"http://127.0.0.1:{free_port()}"
        options = {
            "name": "etcd1",
            "data-dir": self.folder / "etcd",
            "listen-client-urls": urls,
            "advertise-client-urls": urls,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"etcd1={peer}",
            "enable-v2": "true" if self.programs.etcd_by_version_2 else "false",
        }
        command = [self.programs.etcd, *(f"--{name}={value}" for name, value in options.items())]
        self.etcd = LoggedProcess("etcd", command, folder=self.folder, environ=clean_environ())
        self.etcd.saw("ready to serve client requests", times=1)

    def start(self) -> None:
        """Start all nodes; when this returns, one leads and the others follow."""
        self.nodes[0].start()
        self.leads(self.nodes[0])
        for node in self.nodes[1:]:
            node.start()
        self.is_whole()

    # ------------------------------------------------------------------ looking

    def members(self) -> list[Member]:
        """What any living Patroni says."""
        for node in self.nodes:
            with suppress(OSError, urllib.error.URLError, ValueError):
                url = f"http://127.0.0.1:{node.api_port}/cluster"
                with urllib.request.urlopen(url, timeout=3) as answer:
                    return list(json.load(answer)["members"])
        return []

    def leader(self) -> Node | None:
        """Who leads, as Patroni sees it."""
        names = {member["name"] for member in self.members() if member.get("role") in ("leader", "master")}
        return next((node for node in self.nodes if node.name in names), None)

    def leading(self) -> Node:
        """Who leads: someone does."""
        node = self.leader()
        assert node is not None, "nobody leads"
        return node

    def others(self, node: Node) -> list[Node]:
        """All but this one."""
        return [one for one in self.nodes if one is not node]

    def leads(self, *nodes: Node, within: timedelta = timedelta(seconds=60)) -> Node:
        """Wait until one of them takes writes, and return it."""

        def primary() -> Node | None:
            for node in nodes:
                with suppress(OSError, urllib.error.URLError):
                    url = f"http://127.0.0.1:{node.api_port}/primary"
                    with urllib.request.urlopen(url, timeout=3) as answer:
                        if answer.status == 200:
                            return node
            return None

        leader = self._wait(primary, f"{' or '.join(node.name for node in nodes)} leads", within)
        assert leader is not None
        return leader

    def is_whole(self, *, within: timedelta = timedelta(seconds=90)) -> None:
        """Wait until all others follow, one synchronously if that is the mode: only then may the leader die."""
        wanted = "sync_standby" if self.mode.synchronous else "replica"

        def follows() -> bool:
            members = self.members()
            timelines = {member.get("timeline") for member in members}
            roles = {member.get("role") for member in members}
            running = all(member.get("state") in ("running", "streaming") for member in members)
            whole = len(members) == len(self.nodes) and len(timelines) == 1 and running
            return whole and "leader" in roles and (wanted in roles or len(self.nodes) == 1)

        self._wait(follows, f"the cluster has a leader and a {wanted}", within)

    def _wait(self, check: Callable[[], T], what: str, within: timedelta) -> T:
        try:
            return until(check, what, within=within)
        except AssertionError as error:
            error.add_note(f"members: {self.members()}")
            for node in self.nodes:
                if node.process is not None:
                    error.add_note(node.process.shown()[-6000:])
            raise

    # ------------------------------------------------------------------ faults

    def switch_over(self, leader: Node) -> None:
        """A planned change of leader, as `patronictl switchover` asks for it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{leader.api_port}/switchover",
            data=json.dumps({"leader": leader.name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own loopback URL
            assert answer.status == 200

    @contextmanager
    def cut_off(self, node: Node, *, clients: bool) -> Iterator[None]:
        """Drop every packet between this node and etcd; with `clients`, also those of servers and the other node."""
        ports = [node.etcd_port, *([node.port] if clients else [])]
        listed = "{ " + ", ".join(map(str, ports)) + " }"
        name = f"{_TABLE}_{os.getpid()}"
        self._nft("add", "table", "inet", name)
        try:
            self._nft("add", "chain", "inet", name, "out", "{ type filter hook output priority 0 ; }")
            self._nft("add", "rule", "inet", name, "out", "oif", "lo", "tcp", "dport", listed, "drop")
            self._nft("add", "rule", "inet", name, "out", "oif", "lo", "tcp", "sport", listed, "drop")
            yield
        finally:
            self._nft("delete", "table", "inet", name)

    def _nft(self, *words: str) -> None:
        subprocess.run([self.programs.nft, *words], check=True, capture_output=True, timeout=10)

    def stop(self) -> None:
        """End everything that was started."""
        for node in self.nodes:
            node.stop()
        if self.etcd is not None:
            self.etcd.kill()


@contextmanager
def running(programs: Programs, mode: Mode, *, nodes: int) -> Iterator[Cluster]:
    """A cluster in a folder of its own; both are gone afterwards."""
    folder = temporary_folder()
    folder.chmod(0o755)
    with ExitStack() as ends:
        if "HEADGATE_FAILOVER_KEEP" not in os.environ:
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
        ends.callback(nothing_left_in, folder)
        cluster = Cluster(programs, folder, mode, nodes=nodes)
        ends.callback(cluster.stop)
        cluster.start()
        yield cluster


def nothing_left_in(folder: Path) -> None:
    """Wait until no process has its place in this folder; fails, naming those that stay."""

    def gone() -> bool:
        return not _processes_in(folder)

    try:
        until(gone, f"nothing runs in {folder} any more", within=timedelta(seconds=10))
    except AssertionError as error:
        for pid in _processes_in(folder):
            with suppress(OSError):
                error.add_note(f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().decode(errors='replace')}")
        raise


def _processes_in(folder: Path) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if place.readlink().is_relative_to(folder):
                found.append(int(place.parent.name))
    return found


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
