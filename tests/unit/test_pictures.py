"""The pictures of the dashboard in docs/images. `make screenshots` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.web.navigation import ITEMS, Item
from tests.browser.routes import IMAGES, PICTURES, picture_name

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 4_000_000
WEBP = (b"RIFF", b"WEBP")


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_each_page_of_the_menu_has_its_three_pictures(item: Item) -> None:
    for kind in PICTURES:
        head = picture_name(item.path, kind).read_bytes()[:12]
        assert (head[:4], head[8:]) == WEBP


def test_the_pictures_are_small_and_of_one_format() -> None:
    files = list(IMAGES.iterdir())
    assert {file.suffix for file in files} == {".webp"}
    assert sum(file.stat().st_size for file in files) < MAX_BYTES


def test_the_pages_of_the_documentation_show_pictures_that_exist() -> None:
    shown = [
        (page, found)
        for page in DOCS.rglob("*.md")
        for found in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    ]
    assert shown
    assert [found for page, found in shown if not (page.parent / found).is_file()] == []
