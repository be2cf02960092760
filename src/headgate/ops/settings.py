"""All settings, each declared once: flags, variables, file keys, help texts and docs/reference/configuration.md.

A setting `name` is the flag `--name`, the variable `HEADGATE_NAME` and the key `name` in a section of headgate.toml.
To add one, add an entry to SETTINGS, with its name, its help text and the commands that have the flag; an entry of the
section `server` is passed to the field of ServerOptions that has its name. `configuration.py` reads the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from headgate.domain import limits
from headgate.domain.tallies import TOPICS_MAX
from headgate.ops.setting import Kind, Setting

FILE: Final = "headgate.toml"
_SERVE: Final = ("serve",)
_RUN: Final = ("serve", "dev")
_DATABASE: Final = ("serve", "dev", "migrate", "restore-fence", "doctor")
_CHECKED: Final = ("serve", "doctor")
_REMOTE: Final = ("client",)
"""All commands that call a server."""

_text = partial(Setting, Kind.TEXT)
_number = partial(Setting, Kind.INTEGER)
_switch = partial(Setting, Kind.SWITCH, default=False)
_duration = partial(Setting, Kind.DURATION)
_size = partial(Setting, Kind.SIZE)
_path = partial(Setting, Kind.PATH)
_choice = partial(Setting, Kind.CHOICE)
_database = partial(Setting, Kind.DATABASE)
_names = partial(Setting, Kind.NAMES)


def _section(name: str, *settings: Setting) -> list[Setting]:
    return [replace(one, section=name) for one in settings]


SETTINGS: Final = (
    *_section(
        "file",
        _path(
            "config",
            f"Configuration file. It must exist. Default: {FILE} in the current folder, if there is one.",
            (*_DATABASE, *_REMOTE, "config"),
            in_file=False,
        ),
    ),
    *_section(
        "database",
        _database(
            "database_url",
            "postgresql://user@host/database. `dev` uses the embedded PostgreSQL without one.",
            _DATABASE,
            secret=True,
        ),
        _database(
            "direct_database_url",
            "The same database without a transaction pooler, for migrations and LISTEN. Ignored if the URL of the "
            "database has a higher precedence.",
            _CHECKED,
            key="direct_url",
            secret=True,
        ),
        _switch("pooler", "The database URL points to a transaction pooler (PgBouncer).", _CHECKED),
        _switch("unsafe", "Accept database settings that can lose acknowledged jobs.", (*_RUN, "doctor")),
        _switch("embedded", "Use the embedded PostgreSQL.", ("serve", "migrate", "restore-fence", "doctor")),
        _path(
            "data",
            "Folder of the embedded PostgreSQL. Naming one selects the embedded PostgreSQL.",
            ("dev",),
            default_note="./.headgate/postgres",
        ),
    ),
    *_section(
        "server",
        _text("host", "Address to listen on.", _CHECKED, default="127.0.0.1"),
        _number("port", "Port of gRPC. 0 picks a free port.", (*_RUN, "doctor"), default=7070, low=0, high=65_535),
        _number(
            "http_port",
            "Port of the REST API. With --port 0 a free port.",
            (*_RUN, "doctor"),
            default_note="the port after --port, 7071",
            low=0,
            high=65_535,
            served=False,
        ),
        _switch("no_http", "Do not serve the REST API.", (*_RUN, "doctor"), served=False),
        _path(
            "tls_cert", "Server certificate with its chain (PEM); clients use https://. Reloaded on change.", _CHECKED
        ),
        _path("tls_key", "Key of the server certificate (PEM). Reloaded on change.", _CHECKED),
        _path("tls_client_ca", "Require client certificates signed by this authority (PEM).", _CHECKED),
        _path(
            "tokens",
            "JSON file with tokens, readable by its owner only. Reloaded on change. See docs/howto/tokens.md.",
            _CHECKED,
            option="tokens_file",
        ),
        _path("jwt_issuers", "JSON file with the issuers of JWTs that are accepted. See docs/howto/keys.md.", _SERVE),
        _text(
            "rates",
            "Rate limits for each credential by class, separated by commas: "
            "submit=100/1s:200,work=10/1s,read=50/1s,operate=5/1s.",
            _SERVE,
            default="",
            low=0,
            high=200,
        ),
        _switch(
            "insecure",
            "Accept remote connections without TLS: on a trusted network, or behind a proxy that does TLS.",
            _SERVE,
        ),
        _switch("dev", "Development: no tokens, loopback only, gRPC reflection.", _SERVE),
        _duration(
            "lease",
            "Default lease of a job.",
            _SERVE,
            default=limits.LEASE_DEFAULT,
            low=limits.LEASE_MIN,
            high=limits.LEASE_MAX,
        ),
        _duration(
            "reconnect_grace",
            "How long a worker has to reconnect after its connection was lost, before its jobs run again. Must be "
            "shorter than the lease.",
            _SERVE,
            default_note="10s, or the lease if that is not longer",
            low=limits.LEASE_MIN,
            high=limits.LEASE_MAX,
        ),
        _duration(
            "grace",
            "Maximum duration of a drain.",
            _SERVE,
            default=timedelta(seconds=30),
            low=timedelta(0),
            high=timedelta(days=1),
        ),
        _number(
            "streams_per_peer",
            "Maximum open streams per client address and process; 0: no limit. A proxy is one address.",
            _SERVE,
            default=10_000,
            low=0,
            high=1_000_000,
        ),
        _switch("no_dashboard", "Do not serve the dashboard on the port of the REST API.", _RUN),
        _number(
            "metrics_topics",
            "Maximum topics with metrics of their own; others are added up.",
            _SERVE,
            default=TOPICS_MAX,
            low=0,
            high=10_000,
        ),
        _switch("metrics_tenants", "Show the tenant of each topic in metrics.", _SERVE),
        _switch("metrics_open", "Serve metrics without a token to other machines as well.", _SERVE),
        _switch("tracing", "Make OpenTelemetry spans of dispatch; the variables OTEL_… say where they go.", _SERVE),
        _size(
            "payload_max",
            "Largest payload of a submit.",
            _SERVE,
            default=limits.PAYLOAD_MAX_BYTES,
            low=1,
            high=limits.PAYLOAD_MAX_BYTES,
        ),
        _names(
            "webhook_allow",
            "Networks that webhooks may reach although they are not public, separated by commas: "
            "10.1.0.0/16,10.2.0.0/16.",
            _SERVE,
            default=(),
        ),
        _switch("webhook_http", "Permit webhooks to plain http:// URLs.", _SERVE),
        _text(
            "webhook_ports",
            "Ports that webhooks may use, separated by commas: 443,8000-8999.",
            _SERVE,
            default="",
            default_note="80, 443, 8080, 8443",
            low=0,
            high=500,
        ),
        _switch("poll_only", "Do not use LISTEN/NOTIFY between instances.", _CHECKED, served=False),
        _number(
            "processes",
            "Number of server processes on the port, each an instance; about one per processor.",
            _CHECKED,
            default=1,
            served=False,
        ),
        _text(
            "name",
            "Name of this instance.",
            _SERVE,
            default="",
            default_note="host name and process id",
            low=0,
            high=limits.WORKER_ID_MAX_CHARS,
        ),
    ),
    *_section(
        "log",
        _choice(
            "log_level",
            "Log records of this level and above.",
            (*_RUN, "worker"),
            default="INFO",
            choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        ),
        _choice(
            "log_format",
            "Format of log lines: text for people, json for machines.",
            (*_RUN, "worker"),
            default="text",
            choices=("text", "json"),
        ),
    ),
    *_section(
        "worker",
        _number(
            "worker_concurrency",
            "Maximum jobs running at once.",
            ("worker",),
            default=32,
            low=1,
            high=50_000,
            flag_name="concurrency",
        ),
        _names(
            "worker_topics",
            "Topics to work on, separated by commas: mail,image.",
            ("worker",),
            default=(),
            default_note="all registered topics",
            flag_name="topics",
        ),
        _duration(
            "worker_grace",
            "How long running handlers have to finish after SIGTERM.",
            ("worker",),
            default=timedelta(seconds=30),
            low=timedelta(0),
            high=timedelta(days=1),
            flag_name="grace",
        ),
        _choice(
            "worker_job_logs",
            "Records that handlers log with this level and above are stored with their job; OFF: none.",
            ("worker",),
            default="WARNING",
            choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"),
            flag_name="job_logs",
        ),
    ),
    *_section(
        "payload",
        _names(
            "redact",
            "Names of further keys whose values are masked where payloads, results and errors are shown, separated by "
            "commas; `none` masks nothing.",
            default=(),
        ),
    ),
    # Commands that call a server, and the SDK.
    *_section(
        "client",
        _text(
            "profile",
            "Profile of `headgate profile login`: address, token and certificates of a server. For commands, not for "
            "applications.",
            (*_REMOTE, "config"),
            default_note="the one of `headgate profile use`",
            in_file=False,
        ),
        _text("url", "Server address.", _REMOTE, default_note="127.0.0.1:7070"),
        _text(
            "token",
            "Token. Prefer the variable or the file: other users of the machine can see command lines.",
            _REMOTE,
            secret=True,
        ),
        _text(
            "tenant",
            "Tenant of submits in a transaction of the application. Servers take it from the token.",
            default_note="default",
        ),
        _path("ca", "Certificate authority of the server (PEM), for https://."),
        _path("cert", "Own certificate (PEM), for servers that require one."),
        _path("key", "Key of the own certificate (PEM)."),
        _text(
            "encryption_keys",
            "Keys by which the SDK encrypts payloads, results and errors: `id:key,id:key`, the first one writes. See "
            "docs/howto/encryption.md.",
            secret=True,
        ),
    ),
    # Read from the environment only, by parts that know no file.
    *_section(
        "database",
        _path(
            "postgres_bin",
            "Folder of the PostgreSQL programs for the embedded PostgreSQL.",
            default_note="those of the wheel, else those of the system",
            in_file=False,
        ),
        _database(
            "test_database_url",
            "Database of the fixtures in headgate.testing.",
            default_note="an embedded PostgreSQL",
            secret=True,
            in_file=False,
        ),
    ),
    *_section(
        "log",
        _text(
            "traceback", "If set, the command shows the traceback of an error that is a bug in Headgate.", in_file=False
        ),
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
