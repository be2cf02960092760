"""TLS for the listeners: files are checked before a port opens, and read again when they change."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headgate.domain.errors import InvalidSetting

log = logging.getLogger("headgate.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of one server."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, client_ca: Path | None) -> Self | None:
        """Check the files; None means no TLS. Raises InvalidSetting before the port opens."""
        if certificate is None and key is None:
            if client_ca is not None:
                raise InvalidSetting(
                    "--tls-client-ca", "requires a server certificate", hint="pass --tls-cert and --tls-key"
                )
            return None
        if certificate is None or key is None:
            raise InvalidSetting("--tls-cert", "and --tls-key must be given together", hint="pass both or neither")
        files = cls(certificate=certificate, key=key, client_ca=client_ca)
        try:
            files.check()
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(
                "--tls-cert", f"and --tls-key cannot be used ({error})", hint="pass a PEM certificate and its key"
            ) from error
        return files

    def check(self) -> None:
        """Raise OSError or ssl.SSLError if the files cannot be used: gRPC itself would report nothing."""
        self.context()

    def context(self) -> ssl.SSLContext:
        """A new context with these files; raises OSError or ssl.SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed is not verified again, even if its certificate is no longer trusted.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def stamps(self) -> list[tuple[int, int]]:
        """Changes when one of the files was replaced. Raises OSError."""
        files = (self.certificate, self.key, self.client_ca)
        return [(stat.st_mtime_ns, stat.st_ino) for path in files if path is not None for stat in (path.stat(),)]


class ChangedFiles:
    """Tells when the files have changed and can be used; a failure is logged, and what is in use stays."""

    def __init__(self, files: Tls) -> None:
        self._files, self._seen = files, files.stamps()

    def changed(self) -> bool:
        """Whether there is something new to use since the last call that said so."""
        try:
            now = self._files.stamps()
            if now == self._seen:
                return False
            self._files.check()  # while files are being replaced, key and certificate may not match
        except (OSError, ssl.SSLError) as error:
            log.warning('tls_reload_failed error=%s effect="the current certificate stays in use"', error)
            return False
        self._seen = now
        log.info("tls_reloaded certificate=%s", self._files.certificate)
        return True
