"""The programs the lane drives: Debian's own packages, installed when we are root, else named in the refusal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])
PACKAGES = {
    "patroni": "patroni",
    "etcd": "etcd-server",
    "pgbouncer": "pgbouncer",
    "nft": "nftables",
    "setpriv": "util-linux",
}
_POSTGRES = Path("/usr/lib/postgresql")
# postgresql-common would make and start a cluster of its own; this keeps it from doing so, and is removed afterwards.
_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/headgate-failover.conf")


class MissingPackages(Exception):
    """The lane cannot run here; its text says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where they are."""

    patroni: str
    etcd: str
    pgbouncer: str
    nft: str
    setpriv: str
    postgres_bin: Path
    patroni_version: tuple[int, ...]

    @property
    def etcd_by_version_2(self) -> bool:
        """Whether this Patroni must speak etcd's older API.

        Before 3.0.3, with the newer one, a leader whose Patroni was delayed for longer than the ttl wrote its name over
        that of the leader elected meanwhile (patroni#2689): 14,189 acknowledged jobs went with the latter's timeline.
        """
        return self.patroni_version < (3, 0, 3)


def programs() -> Programs:
    """Find them all, having installed what is missing if we may."""
    if os.geteuid() != 0:
        raise MissingPackages(
            "this lane installs Debian packages, drops packets with nftables and runs PostgreSQL as another account: "
            "run it as root, on a machine that may be spoilt"
        )
    missing = _missing()
    if missing:
        _install(missing)
    if still := _missing():
        raise MissingPackages(f"apt-get install {' '.join(still)} did not bring what is needed")
    found = {name: _which(name) or "" for name in PACKAGES}
    said = subprocess.run(
        [found["patroni"], "--version"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    version = tuple(int(number) for number in re.findall(r"\d+", said))
    return Programs(postgres_bin=_postgres_bin() or Path(), patroni_version=version, **found)


def _missing() -> list[str]:
    lacking = [package for name, package in PACKAGES.items() if _which(name) is None]
    return lacking if _postgres_bin() else [*lacking, "postgresql"]


def _install(packages: list[str]) -> None:
    apt = _which("apt-get")
    if apt is None:
        raise MissingPackages(f"no apt-get here: install {', '.join(packages)} by hand")
    _NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
    _NO_CLUSTER.write_text("create_main_cluster = false\n")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    try:
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            done = subprocess.run(
                [apt, *command], env=environ, capture_output=True, text=True, timeout=600, check=False
            )
            if done.returncode and command[0] == "install":
                raise MissingPackages(f"apt-get {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    finally:
        _NO_CLUSTER.unlink(missing_ok=True)


def _which(name: str) -> str | None:
    return shutil.which(name, path=PATH)


def _postgres_bin() -> Path | None:
    """The newest server that the system has."""
    found = [path.parent for path in _POSTGRES.glob("*/bin/postgres")]
    return max(found, key=lambda folder: int(folder.parent.name), default=None)
