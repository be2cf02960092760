"""Client certificates of open connections: what is open ends when their authority is removed from the bundle.

gRPC checks a certificate in the handshake, and has no way to close one connection. So with `--tls-client-ca` every call
checks the certificate of its connection by the authorities that are trusted now, and calls that are open when the
bundle changes are ended if their certificate is not trusted any more. The connection stays, and is of no use.

Only the signatures are checked again: the handshake has checked everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from headgate.api.grpc.errors import end_with
from headgate.api.grpc.methods import Context, Handler
from headgate.domain.identity import TokenRevoked

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger("headgate.server")
LOOK_SECONDS: Final = 1.0
KNOWN_MAX: Final = 10_000
"""Chains whose check is remembered. With more, all are checked again: about 0.1 ms each."""


class ClientCertificates:
    """The authorities of one bundle, and the calls that are open by their certificates."""

    def __init__(self, bundle: Path) -> None:
        """Raises OSError or ValueError if the bundle cannot be used."""
        self._bundle = bundle
        self._stamp = self._stamp_now()
        self._authorities = self._read()
        self._known: dict[bytes, bool] = {}
        self._open: dict[asyncio.Task[Any], tuple[Context, bytes]] = {}

    def guarding(self, handler: Handler) -> Handler:
        """The same handler, for peers whose certificate is trusted now and as long as it is."""
        one: Any = handler  # a named tuple; all methods receive a stream (methods.py)
        kind = "stream_stream" if one.response_streaming else "stream_unary"
        made: Handler = one._replace(**{kind: self._guarded(getattr(one, kind))})
        return made

    async def run(self) -> None:
        """Look every second whether the bundle has changed; cancelled at the end."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.run_once()

    async def run_once(self) -> int:
        """Read the bundle if it has changed, and end calls that are not trusted any more; returns how many."""
        try:
            if (stamp := self._stamp_now()) == self._stamp:
                return 0
            self._authorities = self._read()
        except (OSError, ValueError) as error:
            log.warning('tls_reload_failed error=%s effect="the current authorities stay trusted"', error)
            return 0
        self._stamp, self._known = stamp, {}
        untrusted = [(task, one) for task, (one, chain) in self._open.items() if not self.trusts(chain)]
        for task, context in untrusted:
            await self._refuse(context)
            task.cancel()
        if untrusted:
            log.warning("certificates_revoked calls=%d bundle=%s", len(untrusted), self._bundle)
        return len(untrusted)

    def trusts(self, chain: bytes) -> bool:
        """Whether a chain of certificates (PEM, that of the peer first) leads to an authority of the bundle."""
        known = self._known.get(chain)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[chain] = self._leads_to_authority(chain)
        return known

    def _guarded(self, serve: Callable[[Any, Context], Any]) -> Callable[[Any, Context], Any]:
        async def guarded(requests: Any, context: Context) -> Any:
            chain = _chain_of(context)
            task = asyncio.current_task()
            if not self.trusts(chain) or task is None:
                await end_with(context, _revoked())
            self._open[task] = context, chain
            try:
                return await serve(requests, context)
            finally:
                del self._open[task]

        return guarded

    async def _refuse(self, context: Context) -> None:
        with suppress(grpc.aio.AbortError, grpc.aio.UsageError):  # it ends with this status, or has ended meanwhile
            await end_with(context, _revoked())

    def _leads_to_authority(self, chain: bytes) -> bool:
        from cryptography.x509 import load_pem_x509_certificates

        certificates = load_pem_x509_certificates(chain)
        one: Certificate | None = certificates[0]
        for _ in certificates:
            if one is None or any(one == authority or _is_issued(one, authority) for authority in self._authorities):
                break
            one = next((issuer for issuer in certificates if issuer != one and _is_issued(one, issuer)), None)
        else:
            return False
        return one is not None

    def _read(self) -> list[Certificate]:
        from cryptography.x509 import load_pem_x509_certificates  # only with client certificates

        return load_pem_x509_certificates(self._bundle.read_bytes())

    def _stamp_now(self) -> tuple[int, int, int]:
        stat = self._bundle.stat()
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _chain_of(context: Context) -> bytes:
    found = context.auth_context()
    for name in ("x509_pem_cert_chain", "x509_pem_cert"):
        for chain in found.get(name, ()):
            return bytes(chain)
    return b""


def _is_issued(certificate: Certificate, issuer: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _revoked() -> TokenRevoked:
    return TokenRevoked(
        "the certificate of this connection is not signed by an authority that the server trusts now; connect again "
        "with another one"
    )
