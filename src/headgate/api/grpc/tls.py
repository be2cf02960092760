"""The credentials of the gRPC port. gRPC asks at every handshake whether the files have changed."""

from __future__ import annotations

import logging

import grpc

from headgate.api.tls import ChangedFiles, Tls

log = logging.getLogger("headgate.server")


def credentials(files: Tls) -> grpc.ServerCredentials:
    """Credentials for the port."""
    watch = ChangedFiles(files)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called on a gRPC thread: a new configuration if the files have changed."""
        if not watch.changed():
            return None
        try:
            return _configuration(files)
        except OSError as error:
            log.warning('tls_reload_failed error=%s effect="the current certificate stays in use"', error)
            return None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(files),
        renewed,  # type: ignore[arg-type]  # None is documented: no change
        require_client_authentication=files.client_ca is not None,
    )


def _configuration(files: Tls) -> grpc.ServerCertificateConfiguration:
    roots = files.client_ca.read_bytes() if files.client_ca is not None else None
    return grpc.ssl_server_certificate_configuration(
        [(files.key.read_bytes(), files.certificate.read_bytes())], root_certificates=roots
    )
