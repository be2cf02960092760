"""TLS for the gRPC port: files are checked before the port opens, and read again when they change."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc

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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for the port."""
        seen = self._stamps()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Called at every handshake, on a gRPC thread: a new configuration if the files have changed."""
            nonlocal seen
            try:
                now = self._stamps()
                if now == seen:
                    return None
                self.check()  # while files are being replaced, key and certificate may not match
                changed = self._configuration()
            except (OSError, ssl.SSLError) as error:
                log.warning('tls_reload_failed error=%s effect="the current certificate stays in use"', error)
                return None
            seen = now
            log.info("tls_reloaded certificate=%s", self.certificate)
            return changed

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            renewed,  # type: ignore[arg-type]  # None is documented: no change
            require_client_authentication=self.client_ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        roots = self.client_ca.read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.certificate.read_bytes())], root_certificates=roots
        )

    def _stamps(self) -> list[tuple[int, int]]:
        files = (self.certificate, self.key, self.client_ca)
        return [(stat.st_mtime_ns, stat.st_ino) for path in files if path is not None for stat in (path.stat(),)]
