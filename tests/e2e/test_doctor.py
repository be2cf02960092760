"""`headgate doctor` as an operator runs it: against a real server and its database, and with a bad configuration."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.e2e.conftest import Serve
from tests.support import forks
from tests.support.server import clean_environ

SECRET = "s3cret-of-a-test"


def doctor(folder: Path, *line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return forks.headgate("doctor", *line, environ={**clean_environ(), **environ}, folder=folder)


def test_a_server_that_runs_is_recognised_and_the_worst_finding_is_the_exit_code(
    serve: Serve, database: str, tmp_path: Path
) -> None:
    server = serve("--http-port", "0")
    http_port = int(server.http_url.rpartition(":")[2])
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({SECRET: {"tenant": "acme"}}))
    tokens.chmod(0o600)
    (tmp_path / "headgate.toml").write_text(
        f'[server]\nport = {server.port}\nhttp_port = {http_port}\ntokens = "tokens.json"\n'
    )
    ran = doctor(tmp_path, "-o", "json", HEADGATE_DATABASE_URL=database)
    findings = {one["check"]: one for one in json.loads(ran.stdout)}
    assert findings["port grpc"]["found"] == f"127.0.0.1:{server.port} is in use by a Headgate server"
    assert findings["port http"]["found"] == f"127.0.0.1:{http_port} is in use by a Headgate server"
    assert findings["settings"]["found"] == "file: headgate.toml"
    assert {name for name, one in findings.items() if one["level"] == "fail"} == set(), ran.stdout
    assert findings["role"]["level"] == "warn"  # tests run as the superuser
    assert ran.returncode == 10, ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    watched = doctor(tmp_path, "--load", "1s", HEADGATE_DATABASE_URL=database)
    assert watched.returncode == 0, watched.stderr
    assert re.match(r"watched for 1 s: \d+ commits/s, [\d.]+ MB/s of WAL, \d+ of \d+ connections\n", watched.stdout)
    assert re.search(r"^tick +\d+%", watched.stdout, re.MULTILINE), "the lanes of the server are named"
    assert re.search(r"^- ", watched.stdout, re.MULTILINE), "there is always an advice"
    page = (Path(__file__).parents[2] / "docs/operations/doctor.md").read_text()
    assert {name for name in findings if f"`{name}`" not in page} == set()


def test_a_bad_configuration_and_no_database_fail_with_the_fixes(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({SECRET: {"tenant": "acme"}}))
    tokens.chmod(0o644)
    url = f"postgresql://ann:{SECRET}@127.0.0.1:1/queue"
    ran = doctor(tmp_path, "--tokens", "tokens.json", "--port", "0", HEADGATE_DATABASE_URL=url)
    assert ran.returncode == 1
    assert "fail  tokens file  tokens.json is accessible to users other than its owner (mode 0644)" in ran.stdout
    assert "fix: chmod 600 tokens.json" in ran.stdout
    assert 'database "queue" at 127.0.0.1:1' in ran.stdout
    assert SECRET not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_doctor_reads_what_serve_would_read_from_the_file_and_creates_no_database(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({SECRET: {"tenant": "acme"}}))
    tokens.chmod(0o600)
    exposed = '[server]\nhost = "0.0.0.0"\nport = 0\nhttp_port = 0\ntokens = "tokens.json"\n'
    levels = []
    for text in (exposed, exposed + "insecure = true\n"):
        (tmp_path / "headgate.toml").write_text(text)
        ran = doctor(tmp_path, "--embedded", "-o", "name")
        levels.append([line for line in ran.stdout.splitlines() if line.startswith("options")])
        assert "database skip" in ran.stdout.splitlines(), ran.stdout + ran.stderr
    assert levels == [["options fail"], ["options ok"]]
    assert "is not created yet" in doctor(tmp_path, "--embedded", "--load", "1s").stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["headgate.toml", "tokens.json"]
