"""Is the program that listens on a port a Headgate server? It is asked without a token, and may refuse."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

import grpc

PROBE_SECONDS: Final = 2.0
_METHOD: Final = "/headgate.v1.ProducerService/GetJob"
# What only a server with this method answers: that nothing was asked for, that no one has logged in.
_ANSWERS: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


def is_headgate(host: str, port: int, *, certificate: Path | None = None) -> bool:
    """Whether a Headgate server answers there; with TLS, whether it has this certificate."""
    if certificate is not None:
        return _has_certificate(host, port, certificate)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            ask(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            return getattr(error, "code", lambda: None)() in _ANSWERS  # the stubs do not know that it has one
    return True


def is_headgate_http(host: str, port: int, *, certificate: Path | None = None) -> bool:
    """As `is_headgate`, for the port of the REST API."""
    if certificate is not None:
        return _has_certificate(host, port, certificate)
    connection = HTTPConnection(host, port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/health/live")
        answer = connection.getresponse()
        return answer.status == 200 and "status" in json.loads(answer.read(10_000))
    except (OSError, HTTPException, ValueError, TypeError):
        return False
    finally:
        connection.close()


def _has_certificate(host: str, port: int, path: Path) -> bool:
    try:
        found = ssl.get_server_certificate((host, port), timeout=PROBE_SECONDS)
        return ssl.PEM_cert_to_DER_cert(found) == ssl.PEM_cert_to_DER_cert(_first(path.read_text()))
    except (OSError, ValueError):
        return False


def _first(text: str) -> str:
    """The certificate of the server itself, which is the first one of the file."""
    end = "-----END CERTIFICATE-----"
    head, found, _ = text[text.index("-----BEGIN CERTIFICATE-----") :].partition(end)
    return head + found
