"""The settings of a database that decide whether it keeps what is acknowledged. store/preflight.py reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """The settings that decide, as the server reports them, and what is wrong with them."""

    server_version: str
    server_version_num: int
    server_encoding: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str  # of this session
    synchronous_commit_default: str  # what a new session of this role in this database starts with
    synchronous_standby_names: str
    in_recovery: bool
    read_only: bool
    data_checksums: str
    max_connections: int
    problems: tuple[str, ...]  # each would lose acknowledged work; --unsafe waives them
    own_problems: tuple[str, ...]  # those of them that concern our own sessions
    unfit: tuple[str, ...]  # nothing waives these
    notes: tuple[str, ...]
