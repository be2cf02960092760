"""`headgate serve` and the command line by TLS, as an operator sets them up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import trustme

from tests.e2e.conftest import Serve
from tests.support.server import HEADGATE, clean_environ


def test_a_job_is_submitted_by_tls_with_files_named_on_the_command_line_and_in_the_environment(
    serve: Serve, tmp_path: Path
) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    server = serve("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    done = subprocess.run(
        [HEADGATE, "submit", "mail", "{}"],
        env={**clean_environ(), "HEADGATE_URL": f"https://localhost:{server.port}", "HEADGATE_CA": "ca.pem"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()[0]) == 36, done.stdout
