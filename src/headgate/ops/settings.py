"""All settings, each declared once: flags, variables, file keys, help texts and docs/reference/configuration.md.

A setting `name` is the flag `--name`, the variable `HEADGATE_NAME` and the key `name` in a section of headgate.toml.
To add one, add an entry to SETTINGS; an entry of the section `server` is passed to the field of ServerOptions that has
its name. `configuration.py` reads the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from headgate.domain import limits
from headgate.domain.tallies import TOPICS_MAX
from headgate.ops.setting import Kind, Setting
from headgate.ops.worker_settings import WORKER

FILE: Final = "headgate.toml"
_SERVE: Final = ("serve",)
_RUN: Final = ("serve", "dev")
_DATABASE: Final = ("serve", "dev", "migrate", "restore-fence", "doctor")
_CHECKED: Final = ("serve", "doctor")
_REMOTE: Final = ("client",)
"""All commands that call a server."""

SETTINGS: Final = (
    # --- where the file is
    Setting(
        name="config",
        section="file",
        kind=Kind.PATH,
        help=f"Configuration file. It must exist. Default: {FILE} in the current folder, if there is one.",
        commands=(*_DATABASE, *_REMOTE, "config"),
        in_file=False,
    ),
    # --- database
    Setting(
        name="database_url",
        section="database",
        kind=Kind.DATABASE,
        help="postgresql://user@host/database. `dev` uses the embedded PostgreSQL without one.",
        secret=True,
        commands=_DATABASE,
    ),
    Setting(
        name="direct_database_url",
        section="database",
        key="direct_url",
        kind=Kind.DATABASE,
        help="The same database without a transaction pooler, for migrations and LISTEN. Ignored if the URL of the "
        "database has a higher precedence.",
        secret=True,
        commands=_CHECKED,
    ),
    Setting(
        name="pooler",
        section="database",
        kind=Kind.SWITCH,
        help="The database URL points to a transaction pooler (PgBouncer).",
        default=False,
        commands=_CHECKED,
    ),
    Setting(
        name="unsafe",
        section="database",
        kind=Kind.SWITCH,
        help="Accept database settings that can lose acknowledged jobs.",
        default=False,
        commands=(*_RUN, "doctor"),
    ),
    Setting(
        name="embedded",
        section="database",
        kind=Kind.SWITCH,
        help="Use the embedded PostgreSQL.",
        default=False,
        commands=("serve", "migrate", "restore-fence", "doctor"),
    ),
    Setting(
        name="data",
        section="database",
        kind=Kind.PATH,
        help="Folder of the embedded PostgreSQL. Naming one selects the embedded PostgreSQL.",
        default_note="./.headgate/postgres",
        commands=("dev",),
    ),
    # --- server
    Setting(
        name="host",
        section="server",
        kind=Kind.TEXT,
        help="Address to listen on.",
        default="127.0.0.1",
        commands=_CHECKED,
    ),
    Setting(
        name="port",
        section="server",
        kind=Kind.INTEGER,
        help="Port of gRPC. 0 picks a free port.",
        default=7070,
        low=0,
        high=65_535,
        commands=(*_RUN, "doctor"),
    ),
    Setting(
        name="http_port",
        section="server",
        kind=Kind.INTEGER,
        help="Port of the REST API. With --port 0 a free port.",
        default_note="the port after --port, 7071",
        low=0,
        high=65_535,
        commands=(*_RUN, "doctor"),
        served=False,
    ),
    Setting(
        name="no_http",
        section="server",
        kind=Kind.SWITCH,
        help="Do not serve the REST API.",
        default=False,
        commands=(*_RUN, "doctor"),
        served=False,
    ),
    Setting(
        name="tls_cert",
        section="server",
        kind=Kind.PATH,
        help="Server certificate with its chain (PEM); clients use https://. Reloaded on change.",
        commands=_CHECKED,
    ),
    Setting(
        name="tls_key",
        section="server",
        kind=Kind.PATH,
        help="Key of the server certificate (PEM). Reloaded on change.",
        commands=_CHECKED,
    ),
    Setting(
        name="tls_client_ca",
        section="server",
        kind=Kind.PATH,
        help="Require client certificates signed by this authority (PEM).",
        commands=_CHECKED,
    ),
    Setting(
        name="tokens",
        section="server",
        kind=Kind.PATH,
        help="JSON file with tokens, readable by its owner only. Reloaded on change. See docs/howto/tokens.md.",
        commands=_CHECKED,
        option="tokens_file",
    ),
    Setting(
        name="jwt_issuers",
        section="server",
        kind=Kind.PATH,
        help="JSON file with the issuers of JWTs that are accepted. See docs/howto/keys.md.",
        commands=_SERVE,
    ),
    Setting(
        name="rates",
        section="server",
        kind=Kind.TEXT,
        help="Rate limits for each credential by class, separated by commas: "
        "submit=100/1s:200,work=10/1s,read=50/1s,operate=5/1s.",
        default="",
        low=0,
        high=200,
        commands=_SERVE,
    ),
    Setting(
        name="insecure",
        section="server",
        kind=Kind.SWITCH,
        help="Accept remote connections without TLS: on a trusted network, or behind a proxy that does TLS.",
        default=False,
        commands=_SERVE,
    ),
    Setting(
        name="dev",
        section="server",
        kind=Kind.SWITCH,
        help="Development: no tokens, loopback only, gRPC reflection.",
        default=False,
        commands=_SERVE,
    ),
    Setting(
        name="lease",
        section="server",
        kind=Kind.DURATION,
        help="Default lease of a job.",
        default=timedelta(seconds=60),
        low=limits.LEASE_MIN,
        high=limits.LEASE_MAX,
        commands=_SERVE,
    ),
    Setting(
        name="reconnect_grace",
        section="server",
        kind=Kind.DURATION,
        help="How long a worker has to reconnect after its connection was lost, before its jobs run again. Must be "
        "shorter than the lease.",
        default_note="10s, or the lease if that is not longer",
        low=limits.LEASE_MIN,
        high=limits.LEASE_MAX,
        commands=_SERVE,
    ),
    Setting(
        name="grace",
        section="server",
        kind=Kind.DURATION,
        help="Maximum duration of a drain.",
        default=timedelta(seconds=30),
        low=timedelta(0),
        high=timedelta(days=1),
        commands=_SERVE,
    ),
    Setting(
        name="streams_per_peer",
        section="server",
        kind=Kind.INTEGER,
        help="Maximum open streams per client address and process; 0: no limit. A proxy is one address.",
        default=10_000,
        low=0,
        high=1_000_000,
        commands=_SERVE,
    ),
    Setting(
        name="no_dashboard",
        section="server",
        kind=Kind.SWITCH,
        help="Do not serve the dashboard on the port of the REST API.",
        default=False,
        commands=_RUN,
    ),
    Setting(
        name="metrics_topics",
        section="server",
        kind=Kind.INTEGER,
        help="Maximum topics with metrics of their own; others are added up.",
        default=TOPICS_MAX,
        low=0,
        high=10_000,
        commands=_SERVE,
    ),
    Setting(
        name="metrics_tenants",
        section="server",
        kind=Kind.SWITCH,
        help="Show the tenant of each topic in metrics.",
        default=False,
        commands=_SERVE,
    ),
    Setting(
        name="metrics_open",
        section="server",
        kind=Kind.SWITCH,
        help="Serve metrics without a token to other machines as well.",
        default=False,
        commands=_SERVE,
    ),
    Setting(
        name="tracing",
        section="server",
        kind=Kind.SWITCH,
        help="Make OpenTelemetry spans of dispatch; the variables OTEL_… say where they go.",
        default=False,
        commands=_SERVE,
    ),
    Setting(
        name="payload_max",
        section="server",
        kind=Kind.SIZE,
        help="Largest payload of a submit.",
        default=limits.PAYLOAD_MAX_BYTES,
        low=1,
        high=limits.PAYLOAD_MAX_BYTES,
        commands=_SERVE,
    ),
    Setting(
        name="webhook_allow",
        section="server",
        kind=Kind.NAMES,
        help="Networks that webhooks may reach although they are not public, separated by commas: "
        "10.1.0.0/16,10.2.0.0/16.",
        default=(),
        commands=_SERVE,
    ),
    Setting(
        name="webhook_http",
        section="server",
        kind=Kind.SWITCH,
        help="Permit webhooks to plain http:// URLs.",
        default=False,
        commands=_SERVE,
    ),
    Setting(
        name="webhook_ports",
        section="server",
        kind=Kind.TEXT,
        help="Ports that webhooks may use, separated by commas: 443,8000-8999.",
        default="",
        default_note="80, 443, 8080, 8443",
        low=0,
        high=500,
        commands=_SERVE,
    ),
    Setting(
        name="poll_only",
        section="server",
        kind=Kind.SWITCH,
        help="Do not use LISTEN/NOTIFY between instances.",
        default=False,
        commands=_CHECKED,
        served=False,
    ),
    Setting(
        name="processes",
        section="server",
        kind=Kind.INTEGER,
        help="Number of server processes on the port, each an instance; about one per processor.",
        default=1,
        commands=_CHECKED,
        served=False,
    ),
    Setting(
        name="name",
        section="server",
        kind=Kind.TEXT,
        help="Name of this instance.",
        default="",
        default_note="host name and process id",
        low=0,
        high=limits.WORKER_ID_MAX_CHARS,
        commands=_SERVE,
    ),
    # --- logs
    Setting(
        name="log_level",
        section="log",
        kind=Kind.CHOICE,
        help="Log records of this level and above.",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        commands=(*_RUN, "worker"),
    ),
    Setting(
        name="log_format",
        section="log",
        kind=Kind.CHOICE,
        help="Format of log lines: text for people, json for machines.",
        default="text",
        choices=("text", "json"),
        commands=(*_RUN, "worker"),
    ),
    # --- workers
    *WORKER,
    # --- payloads
    Setting(
        name="redact",
        section="payload",
        kind=Kind.NAMES,
        help="Names of further keys whose values are masked where payloads, results and errors are shown, separated by "
        "commas; `none` masks nothing.",
        default=(),
    ),
    # --- commands that call a server, and the SDK
    Setting(
        name="profile",
        section="client",
        kind=Kind.TEXT,
        help="Profile of `headgate profile login`: address, token and certificates of a server. For commands, not for "
        "applications.",
        default_note="the one of `headgate profile use`",
        commands=(*_REMOTE, "config"),
        in_file=False,
    ),
    Setting(
        name="url",
        section="client",
        kind=Kind.TEXT,
        help="Server address.",
        default_note="127.0.0.1:7070",
        commands=_REMOTE,
    ),
    Setting(
        name="token",
        section="client",
        kind=Kind.TEXT,
        help="Token. Prefer the variable or the file: other users of the machine can see command lines.",
        secret=True,
        commands=_REMOTE,
    ),
    Setting(
        name="tenant",
        section="client",
        kind=Kind.TEXT,
        help="Tenant of submits in a transaction of the application. Servers take it from the token.",
        default_note="default",
    ),
    Setting(
        name="ca", section="client", kind=Kind.PATH, help="Certificate authority of the server (PEM), for https://."
    ),
    Setting(
        name="cert",
        section="client",
        kind=Kind.PATH,
        help="Own certificate (PEM), for servers that require one.",
    ),
    Setting(name="key", section="client", kind=Kind.PATH, help="Key of the own certificate (PEM)."),
    Setting(
        name="encryption_keys",
        section="client",
        kind=Kind.TEXT,
        help="Keys by which the SDK encrypts payloads, results and errors: `id:key,id:key`, the first one writes. See "
        "docs/howto/encryption.md.",
        secret=True,
    ),
    # --- read from the environment only, by parts that know no file
    Setting(
        name="postgres_bin",
        section="database",
        kind=Kind.PATH,
        help="Folder of the PostgreSQL programs for the embedded PostgreSQL.",
        default_note="those of the wheel, else those of the system",
        in_file=False,
    ),
    Setting(
        name="test_database_url",
        section="database",
        kind=Kind.DATABASE,
        help="Database of the fixtures in headgate.testing.",
        default_note="an embedded PostgreSQL",
        secret=True,
        in_file=False,
    ),
    Setting(
        name="traceback",
        section="log",
        kind=Kind.TEXT,
        help="If set, the command shows the traceback of an error that is a bug in Headgate.",
        in_file=False,
    ),
)

BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE: Final[Mapping[str, Setting]] = {one.variable: one for one in SETTINGS if one.in_environment}
SECTIONS: Final[Mapping[str, Mapping[str, Setting]]] = {
    section: {one.file_key: one for one in SETTINGS if one.section == section and one.in_file}
    for section in dict.fromkeys(one.section for one in SETTINGS if one.in_file)
}


def settings_of(command: str) -> tuple[Setting, ...]:
    """The settings that have a flag of this command; `client` for all commands that call a server."""
    return tuple(one for one in SETTINGS if command in one.commands)


def default_file(folder: Path) -> Path | None:
    """The configuration file of a folder, if it has one."""
    found = folder / FILE
    return found if found.is_file() else None
