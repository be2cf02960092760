"""The port of the REST API and of the dashboard: which one, and how it is shown."""

from __future__ import annotations

from headgate.domain.errors import InvalidInput, not_both
from headgate.ops.configuration import Configuration


def http_port_of(config: Configuration) -> int | None:
    """The port of the REST API, None for none: by default the one after that of gRPC, or any if that is any."""
    port, http_port = config.integer("port"), config["http_port"]
    if config.switch("no_http"):
        if http_port is not None:
            raise not_both("--http-port", "--no-http")
        return None
    if http_port is None:
        return port + 1 if 0 < port < 65_535 else 0
    if http_port and http_port == port:
        raise InvalidInput("--http-port", f"{port} is the port of gRPC", hint="give another one, or leave it out")
    return config.integer("http_port")


def http_url(*, host: str, port: int, tls: bool) -> str:
    """The address of the REST API."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def http_lines(*, host: str, port: int, tls: bool, dashboard: bool) -> list[str]:
    """What a server prints about it."""
    url = http_url(host=host, port=port, tls=tls)
    return [f"REST API on {url}", *([f"dashboard on {url}"] if dashboard else [])]
