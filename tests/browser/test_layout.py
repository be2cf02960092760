"""What is opened, offered or selected stays inside the window, covers nothing of the bar, and moves no rows."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import NARROW, NARROWEST, WIDE, View, viewing
from tests.browser.routes import filled, page_paths
from tests.browser.seed import Seed

MENUS = "main details.menu, main details.drop, header details.account"
OUTSIDE = """async (menu) => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

  const box = menu.querySelector(".popover").getBoundingClientRect();
  const most = document.documentElement.clientWidth;
  return box.left < 0 || box.right > most ? [box.left, box.right] : null;
}"""
OVERLAPS = """() => {
  const most = document.documentElement.clientWidth;
  const boxes = [...document.querySelectorAll(".bar > *, .bar-end > *, .live > *")]
    .filter((one) => !one.matches(".bar-end, .live") && one.getClientRects().length)
    .map((one) => [one.id || one.className, one.getBoundingClientRect()]);
  const found = boxes.filter(([, box]) => box.left < 0 || box.right > most + 0.5).map(([name]) => `${name} is cut`);
  for (const [first, a] of boxes) for (const [second, b] of boxes) {
    const beside = a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top || b.bottom <= a.top;
    if (first < second && !beside) found.push(`${first} covers ${second}`);
  }
  return found;
}"""
# By the text itself: a box may be narrower than what is written in it.
LEGEND_OVERLAPS = """(chart) => {
  const edge = chart.getBoundingClientRect().right;
  const shown = [...chart.shadowRoot.querySelectorAll(".u-series")].filter((one) => one.getClientRects().length);
  const boxes = shown.map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return [one.textContent, range.getBoundingClientRect()];
  });
  const found = boxes.filter(([, box]) => box.right > edge + 1).map(([text]) => `${text} is cut`);
  for (const [first, a] of boxes) for (const [second, b] of boxes) {
    const beside = a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
    if (first < second && !beside) found.push(`${first} is on top of ${second}`);
  }
  return found;
}"""


@pytest.mark.parametrize("path", page_paths())
def test_every_menu_opens_inside_the_window(browser: Browser, dev_url: str, seed: Seed, path: str) -> None:
    with viewing(browser, dev_url) as view:
        view.open(filled(path, seed.values))
        for width, height in (WIDE, NARROW, NARROWEST):
            view.page.set_viewport_size({"width": width, "height": height})
            assert opened(view) == [], f"at {width} px"


def opened(view: View) -> list[Any]:
    """Open each menu of the page that can be seen; returns those that are partly outside."""
    found = []
    for menu in view.page.locator(MENUS).all():
        summary = menu.locator("summary").first
        if not summary.is_visible():
            continue
        summary.click()
        expect(menu.locator(".popover").first).to_be_visible()
        if outside := menu.evaluate(OUTSIDE):
            found.append((summary.inner_text(), outside))
        view.page.keyboard.press("Escape")
        expect(menu.locator(".popover").first).to_be_hidden()
    return found


@pytest.mark.parametrize("size", [(1024, 768), NARROW, NARROWEST], ids=["tablet", "narrow", "narrowest"])
def test_an_offer_of_new_rows_covers_nothing_of_the_bar(
    browser: Browser, dev_url: str, seed: Seed, size: tuple[int, int]
) -> None:
    assert seed.jobs
    with viewing(browser, dev_url, size=size) as view:
        view.open("/ui/jobs")
        # In one step: what the page reads meanwhile would hide it again.
        shown, overlaps, width = view.page.evaluate(f"""() => {{
          const one = document.querySelector("#live-new");
          one.hidden = false;
          one.textContent = "1,204 new · click to show";
          return [one.getClientRects().length, ({OVERLAPS})(), document.documentElement.scrollWidth];
        }}""")
        assert (shown, overlaps) == (1, [])
        assert width <= size[0]


def test_the_search_of_the_bar_is_wide_enough_to_type_on_a_narrow_screen(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url, size=NARROWEST) as view:
        view.open("/ui/topics")
        field = view.page.locator("#search")
        field.focus()
        assert field.bounding_box()["width"] >= 200  # type: ignore[index]
        view.page.keyboard.press("Tab")  # what it covers is next
        assert view.page.evaluate(OVERLAPS) == []


def test_the_shortcuts_are_shown_from_their_top(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url, size=NARROWEST) as view:
        view.open("/ui/topics")
        view.page.keyboard.press("?")
        expect(view.page.locator("#help-title")).to_be_in_viewport()


def test_a_question_about_cancelling_has_two_different_answers(browser: Browser, dev_url: str, seed: Seed) -> None:
    with viewing(browser, dev_url) as view:
        view.open(f"/ui/jobs/{seed.jobs['scheduled']}")
        view.page.get_by_role("button", name="Cancel", exact=True).click()
        expect(view.page.get_by_role("dialog").get_by_role("button")).to_have_text(["Go back", "Cancel"])


@pytest.mark.parametrize("size", [WIDE, NARROW, NARROWEST], ids=["wide", "narrow", "narrowest"])
def test_the_names_below_a_chart_are_neither_cut_nor_on_top_of_each_other(
    browser: Browser, dev_url: str, seed: Seed, size: tuple[int, int]
) -> None:
    assert seed.jobs
    with viewing(browser, dev_url, size=size) as view:
        view.open("/ui/charts")
        charts = view.page.locator("hg-chart")
        expect(charts.first.locator(".u-series").last).to_be_visible()
        for chart in charts.all():
            assert chart.evaluate(LEGEND_OVERLAPS) == []


@pytest.mark.parametrize("size", [WIDE, NARROW, NARROWEST], ids=["wide", "narrow", "narrowest"])
def test_selecting_a_row_moves_no_row(browser: Browser, dev_url: str, seed: Seed, size: tuple[int, int]) -> None:
    assert seed.jobs
    with viewing(browser, dev_url, size=size) as view:
        view.page.emulate_media(reduced_motion="reduce")
        view.open("/ui/jobs?filter=topic:mail")
        box = view.page.locator('input[name="id"]').nth(1)
        box.scroll_into_view_if_needed()
        before = box.bounding_box()
        box.check()
        expect(view.page.locator("[data-selected-count]")).to_have_text("1 selected")
        assert box.bounding_box() == before
        redrive = view.page.locator("#selection").get_by_role("button", name="Redrive")
        expect(redrive).to_be_in_viewport()
        view.check_width(size)
        view.check_accessible()


def test_a_long_command_does_not_run_below_its_copy_button(browser: Browser, dev_url: str, seed: Seed) -> None:
    with viewing(browser, dev_url, size=NARROWEST) as view:
        view.open(f"/ui/jobs/{seed.jobs['dead']}")
        view.page.get_by_text("Copy as").click()
        block = view.page.locator(".copy-as .code").first
        text, button = block.locator("pre").bounding_box(), block.get_by_role("button").bounding_box()
        assert text is not None
        assert button is not None
        assert text["x"] + text["width"] <= button["x"] + 1


@pytest.mark.parametrize("path", ["/ui", "/ui/jobs", "/ui/jobs/{job_id:str}", "/ui/schedules/{name:str}"])
def test_without_scripts_nothing_that_needs_them_is_shown(
    browser: Browser, dev_url: str, seed: Seed, path: str
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(dev_url + filled(path, seed.values))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    for one in page.locator(".js-only, [data-preview], [data-copy], [data-select-all], #live-mode").all():
        assert not one.is_visible(), one.get_attribute("class")
    context.close()


def test_the_next_runs_of_a_schedule_are_not_cut(browser: Browser, dev_url: str, seed: Seed) -> None:
    with viewing(browser, dev_url) as view:
        view.open(f"/ui/schedules/{seed.values['schedule']}")
        table = view.page.locator(".table-wrap:has(table.runs)")
        expect(table).to_be_visible()
        assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")


@pytest.mark.parametrize(("size", "least"), [(WIDE, 250), ((900, 740), 200)])
def test_the_error_of_a_job_has_room_in_the_list(
    browser: Browser, dev_url: str, seed: Seed, size: tuple[int, int], least: int
) -> None:
    del seed
    with viewing(browser, dev_url, size=size) as view:
        view.open("/ui/jobs?filter=state:dead")
        cell = view.page.locator("td.error-cell:not(.blank)").first.bounding_box()
        assert cell is not None
        assert cell["width"] >= least
        assert cell["x"] + cell["width"] <= size[0], "without scrolling"
        view.check()
