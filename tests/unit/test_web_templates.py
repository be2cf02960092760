"""What templates and scripts may not contain: the policy of the browser would block it, or it would be a hole."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from headgate import web
from headgate.web.rendering import TEMPLATES
from headgate.web.static_files import ROOT, StaticFiles

SOURCES = Path(web.__file__).parent
HTML = sorted(TEMPLATES.rglob("*.html"))
SCRIPTS = sorted((ROOT / "js").rglob("*.js"))
FORBIDDEN = {
    r"\|\s*safe\b": "marks text of others as HTML",
    r"\{%-?\s*autoescape": "switches escaping off",
    r"\sstyle=": "is an inline style",
    r"<style\b": "is an inline style",
    r"\son[a-z]+\s*=\s*[\"']": "is an inline script",
    r"hx-on": "is an inline script",
    r"\bjs:|javascript:": "is an inline script",
    r"<script(?![^>]*(\ssrc=|application/json))": "is an inline script",
    r"(src|href|action|hx-\w+)=[\"']https?://": "is of another host",
}


@pytest.mark.parametrize("file", HTML, ids=lambda file: str(file.relative_to(TEMPLATES)))
def test_a_template_has_nothing_inline_and_trusts_no_text(file: Path) -> None:
    text = re.sub(r"\{#.*?#\}", "", file.read_text(), flags=re.DOTALL)
    found = [f"{pattern}: {why}" for pattern, why in FORBIDDEN.items() if re.search(pattern, text, re.IGNORECASE)]
    assert found == []


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_script_writes_no_html_and_runs_no_text(file: Path) -> None:
    pattern = r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"on"
    assert re.findall(pattern, file.read_text()) == []


def test_markup_is_made_in_one_module_only() -> None:
    users = [file.name for file in SOURCES.rglob("*.py") if "Markup(" in file.read_text()]
    assert users == ["filters.py"]


def test_files_of_others_are_those_that_are_listed() -> None:
    folder = ROOT / "vendor"
    rows = [line.split(" | ") for line in (folder / "VERSIONS").read_text().splitlines() if not line.startswith("#")]
    listed = {name: digest for name, _, _, digest in rows}
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.suffix in (".js", ".css")
    }
    assert found == listed
    licences = {file.stem.lower() for file in folder.glob("*.LICENSE")}
    assert {project.split()[0].split(".")[0].lower() for _, project, _, _ in rows} == licences


def test_modules_name_files_that_exist() -> None:
    for script in SCRIPTS:
        for name in re.findall(r'from "\./([^"]+)"', script.read_text()):
            assert (script.parent / name).exists(), f"{script.name} imports {name}"


def test_a_changed_file_has_another_address(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    before = StaticFiles(tmp_path).url("a.css")
    (tmp_path / "a.css").write_text("b")
    assert StaticFiles(tmp_path).url("a.css") != before
