"""docs/howto/rest.md, exactly as printed: every console line, in order, against a server in dev mode."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from tests.e2e.conftest import Serve
from tests.support import http_clients
from tests.support.howto import HOWTO
from tests.support.server import clean_environ

PAGE = (HOWTO / "rest.md").read_text()
ADDRESS = "http://127.0.0.1:7071"


def console_lines() -> Iterator[tuple[str, str]]:
    """Each command of the page, and what it prints."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)


def test_every_command_of_the_page_prints_what_the_page_says(serve: Serve) -> None:
    url = serve("--http-port", "0").http_url
    lines = list(console_lines())
    assert len(lines) > 10
    for command, shown in lines:
        done = subprocess.run(
            ["/bin/sh", "-c", command.replace(ADDRESS, url)],
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        pattern = re.escape(shown.rstrip("\n")).replace("…", "[^\n]*")
        assert re.fullmatch(pattern, done.stdout.rstrip("\n")), (command, done.stdout, shown)
    page = http_clients.get(f"{url}/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "/v1/openapi.json" in page.text
    assert not re.findall(r"(?:src|href)=[\"']https?:", page.text), "it loads nothing from other hosts"


def test_every_path_that_the_page_names_is_in_the_document() -> None:
    document = (HOWTO.parent / "reference/openapi.json").read_text()
    named = set(re.findall(r"`(?:GET|POST|PUT|PATCH|DELETE) (/(?:v1|health)[\w/.-]*)", PAGE)) - {"/v1/openapi.json"}
    assert len(named) > 15
    for path in named:
        pattern = re.sub(r"/(ID|NAME)(?=/|$)", r"/{[a-z_]+}", path.split("?")[0])
        assert re.search(rf'"{pattern}": {{', document), path
