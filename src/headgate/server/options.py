"""The options of an instance. `headgate serve` makes them from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from headgate.dispatch.renewals import check_lease
from headgate.domain import limits
from headgate.domain.errors import InvalidSetting
from headgate.domain.tallies import TOPICS_MAX
from headgate.ops.exposure import check_encrypted, check_private, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How one instance is to run."""

    database_url: str
    direct_database_url: str | None = None
    pooler: bool = False
    host: str = "127.0.0.1"
    port: int = 7070
    http_port: int | None = None
    """Port of the REST API; None: there is none."""
    no_dashboard: bool = False
    """Do not serve the dashboard on the port of the REST API."""
    shared_port: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens_file: Path | None = None
    jwt_issuers: Path | None = None
    rates: str = ""
    insecure: bool = False
    dev: bool = False
    unsafe: bool = False
    lease: timedelta = limits.LEASE_DEFAULT
    reconnect_grace: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)
    streams_per_peer: int = 10_000
    payload_max: int = limits.PAYLOAD_MAX_BYTES
    claim_limit: int = 500
    tick_seconds: float = 1.0
    retention_seconds: float = 60.0
    webhook_allow: tuple[str, ...] = ()
    webhook_http: bool = False
    webhook_ports: str = ""
    redact: tuple[str, ...] = ()
    notifications: bool = True
    wakes: bool = True
    name: str = ""
    version: str = ""
    metrics_topics: int = TOPICS_MAX
    metrics_tenants: bool = False
    metrics_open: bool = False
    tracing: bool = False
    process: int = 1
    processes: int = 1
    processes_folder: Path | None = None


def check_options(options: ServerOptions) -> None:
    """Raise if they contradict each other, or would serve secrets to others."""
    if options.dev and options.tokens_file is None and not is_loopback(options.host):
        raise InvalidSetting(
            "--host",
            f"{options.host} is reachable from other machines, and dev mode has no login",
            hint="use 127.0.0.1",
        )
    check_encrypted(options.host, tls=options.tls_cert is not None, insecure=options.insecure)
    check_private(options.tokens_file, setting="--tokens")
    check_private(options.tls_key, setting="--tls-key")
    check_lease(options.lease)
