"""The file of issuers: what it may say."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.domain.errors import InvalidSetting
from headgate.domain.jwt_issuers import TENANT_CLAIMS, parse_issuers
from headgate.ops.fetch import fetch
from headgate.ops.issuers import read_issuers

GOOD = {
    "issuer": "https://login.example.com/",
    "audience": "headgate",
    "algorithms": ["RS256"],
    "jwks_url": "https://login.example.com/keys",
}


def parsed(**fields: Any) -> Any:
    entry = {name: value for name, value in (GOOD | fields).items() if value is not None}
    return parse_issuers(json.dumps({"issuers": [entry]}), source="issuers.json")[0]


def test_an_issuer_has_defaults_and_files_are_beside_the_configuration() -> None:
    one = parsed()
    assert (one.skew, one.max_age, one.claims.tenant) == (timedelta(seconds=5), timedelta(hours=12), TENANT_CLAIMS)
    file = parse_issuers(
        json.dumps({"issuers": [GOOD | {"jwks_url": "", "keys_file": "keys.pem"}]}), source="/etc/headgate/issuers.json"
    )[0]
    assert file.keys_file == Path("/etc/headgate/keys.pem")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"algorithms": ["none"]}, "algorithms: has no algorithm"),
        ({"algorithms": ["HS256"]}, "algorithms: has no algorithm"),
        ({"algorithms": []}, "algorithms: must be a list"),
        ({"algorithms": None}, "algorithms"),
        ({"issuer": None}, "issuer: must be"),
        ({"audience": ""}, "audience: must have"),
        ({"jwks_url": None}, "give exactly one"),
        ({"keys_file": "keys.pem"}, "give exactly one"),
        ({"jwks_url": "http://login.example.com/keys"}, "must be an https:// URL"),
        ({"jwks_url": "http://127.0.0.1.example.com/"}, "must be an https:// URL"),
        ({"jwks_url": "https://user:secret@login.example.com/"}, "must be an https:// URL"),
        ({"jwks_url": "file:///etc/passwd"}, "must be an https:// URL"),
        ({"jwks_url": "https://[::1"}, "is not a URL"),
        ({"skew": "61s"}, "skew: must be at most 60 s"),
        ({"max_age": "2d"}, "max_age: must be at most 86400 s"),
        ({"skew": 5}, "skew: must be a str"),
        ({"tenant": "ACME"}, "tenant: is not a tenant"),
        ({"claims": {"roles": "x"}}, "claims: must be an object"),
        ({"rates": {"submit": "fast"}}, "rates.submit"),
        ({"audiences": ["x"]}, "audiences: is not a known field"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=f"issuer 1: .*{words}"):
        parsed(**fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"issuers": []}',
        '{"issuers": {}}',
        '{"issuers": [7]}',
        '{"issuers": [], "issuers": []}',
        json.dumps({"issuers": [GOOD, GOOD]}),
    ],
)
def test_a_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"issuers\.json"):
        parse_issuers(text, source="issuers.json")


def test_a_file_that_cannot_be_read_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"--jwt-issuers: .*cannot be read"):
        read_issuers(tmp_path / "missing.json")
    assert read_issuers(None) == []


# ---------------------------------------------------------------------- fetching


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path:
            case "/keys?v=1":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")
            case "/redirect":
                self.send_response(302)
                self.send_header("Location", "/keys?v=1")
                self.end_headers()
            case "/large":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"x" * 2_000)
            case _:
                self.send_response(500)
                self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Nothing."""


@pytest.fixture
def pages() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


async def test_a_document_is_fetched_within_bounds_and_redirects_are_not_followed(pages: str) -> None:
    assert await fetch(f"{pages}/keys?v=1") == b"{}"
    with pytest.raises(ValueError, match="status 302"):
        await fetch(f"{pages}/redirect")
    with pytest.raises(ValueError, match="status 500"):
        await fetch(f"{pages}/other")
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        await fetch(f"{pages}/large", max_bytes=1_000)
    with pytest.raises(OSError):  # nothing listens there
        await fetch("http://127.0.0.1:1/", seconds=1)
