"""Checks of this machine for `headgate doctor`: ports, files, certificates, limits, disk."""

from __future__ import annotations

import errno
import shutil
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from headgate.domain.diagnosis import Finding, fail, ok, skip, warn
from headgate.domain.units import size_text
from headgate.ops.exposure import exposure_of
from headgate.ops.files import RESERVED

EXPIRY_WARN: Final = timedelta(days=21)
FILES_WARN, FILES_FAIL = 4_096, 256
DISK_WARN, DISK_FAIL = 0.20, 0.05
DISK_WARN_BYTES: Final = 2 << 30


def check_port(name: str, host: str, port: int, *, setting: str, is_headgate: Callable[[str, int], bool]) -> Finding:
    """The port is free, or a Headgate server uses it. `is_headgate` asks the listener what it is."""
    check, where = f"port {name}", f"{host}:{port}"
    if port == 0:
        return ok(check, "a free port is picked at the start")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return fail(check, f"{host} is not an address of this machine ({error.strerror})", fix="change --host")
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                return _taken(check, where, error, host=host, port=port, setting=setting, is_headgate=is_headgate)
    return ok(check, f"{where} is free")


def _taken(
    check: str,
    where: str,
    error: OSError,
    *,
    host: str,
    port: int,
    setting: str,
    is_headgate: Callable[[str, int], bool],
) -> Finding:
    if error.errno == errno.EADDRINUSE:
        reached = "127.0.0.1" if host in ("", "0.0.0.0") else "::1" if host == "::" else host  # noqa: S104 - compared
        if is_headgate(reached, port):
            return ok(check, f"{where} is in use by a Headgate server")
        return fail(
            check, f"{where} is in use by another program", fix=f"ss -ltnp 'sport = :{port}' names it; or {setting}"
        )
    if error.errno == errno.EACCES:
        return fail(check, f"{where} needs the rights of root", fix=f"{setting} with a port from 1024 on")
    return fail(check, f"{where} cannot be used ({error.strerror})", fix="change --host or " + setting)


def check_secret_file(name: str, path: Path | None) -> Finding:
    """A file with secrets exists, and only its owner can read it."""
    check = f"{name} file"
    if path is None:
        return skip(check, "not configured")
    try:
        exposed = exposure_of(path)
        with path.open("rb"):
            pass
    except OSError as error:
        return fail(check, f"{path} cannot be read ({error.strerror})", fix=f"ls -l {path}; see the user of the server")
    if exposed is not None:
        return fail(check, exposed[0], fix=exposed[1])
    return ok(check, f"{path} is private")


def check_certificate(
    certificate: Path | None, key: Path | None, client_ca: Path | None = None, *, now: Callable[[], datetime]
) -> Finding:
    """The certificate fits its key, is valid now, and stays so for a while; the authority of clients can be read."""
    if certificate is None and key is None and client_ca is None:
        return skip("certificate", "TLS is not configured")
    if certificate is None or key is None:
        return fail(
            "certificate",
            "of --tls-cert and --tls-key only one is given" if certificate or key else "--tls-client-ca is given alone",
            fix="pass --tls-cert and --tls-key, or no file of TLS at all",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except OSError as error:
        return fail("certificate", f"{client_ca} cannot be used ({error})", fix="pass a PEM file of authorities")
    try:
        context.load_cert_chain(certificate, key)
        begins, ends = _validity(certificate)
    except (OSError, ValueError) as error:
        return fail(
            "certificate",
            f"{certificate} and {key} cannot be used ({error})",
            fix="pass a PEM certificate with its chain, and the key it was made for",
        )
    at = now()
    text = f"{certificate} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d %H:%M} UTC"
    fix = "renew it; servers read the new files without a restart"
    if not begins <= at < ends:
        return fail("certificate", text, fix=fix)
    if ends - at < EXPIRY_WARN:
        return warn("certificate", f"{text}: {(ends - at).days} days left", fix=fix)
    return ok("certificate", text)


def _validity(path: Path) -> tuple[datetime, datetime]:
    """The time in which all certificates of a file are valid."""
    from cryptography import x509  # comes with headgate[server]

    chain = x509.load_pem_x509_certificates(path.read_bytes())
    return max(one.not_valid_before_utc for one in chain), min(one.not_valid_after_utc for one in chain)


def utc_now() -> datetime:
    """The clock of this machine."""
    return datetime.now(UTC)


def check_files(limit: int | None) -> Finding:
    """As many files may be open as clients connect. `limit` is the highest that this process may have."""
    if limit is None:
        return skip("open files", "this system has no limit, or does not tell it")
    text = f"up to {limit:,} open files, so about {max(0, limit - RESERVED):,} clients"
    fix = "LimitNOFILE=65536 in the systemd unit, or: ulimit -Hn 65536"
    if limit < FILES_FAIL:
        return fail("open files", text, fix=fix)
    if limit < FILES_WARN:
        return warn("open files", text, fix=fix)
    return ok("open files", text)


def open_files_limit() -> int | None:
    """The hard limit on open files of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def check_disk(
    folder: Path | None, *, size: str, usage: Callable[[Path], tuple[int, int, int]] | None = None
) -> Finding:
    """The disk of the database has space; `folder` is None where it is on another machine."""
    if folder is None:
        return skip("disk", f"the database has {size}; its disk is not visible from here")
    try:
        total, _, free = (usage or shutil.disk_usage)(folder)
    except OSError as error:
        return skip("disk", f"the database has {size}; {folder} cannot be read ({error.strerror})")
    text = f"the database has {size}; {_gib(free)} of {_gib(total)} are free at {folder}"
    fix = f"make space: shorten the retention (headgate retention set), or enlarge the disk of {folder}"
    if free < DISK_FAIL * total:
        return fail("disk", text, fix=fix)
    if free < DISK_WARN_BYTES or (free < DISK_WARN * total and free < 10 * DISK_WARN_BYTES):
        return warn("disk", text, fix=fix)
    return ok("disk", text)


def _gib(count: int) -> str:
    unit = 1 << 30 if count >= 1 << 30 else 1 << 20
    return size_text(count - count % unit)
