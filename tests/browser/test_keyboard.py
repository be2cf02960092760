"""Journeys with the keyboard alone, and the shortcuts."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.browser.conftest import viewing
from tests.browser.seed import Seed


def test_a_person_without_a_mouse_gets_everywhere(browser: Browser, dev_url: str, seed: Seed) -> None:
    del seed
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("g")
        page.keyboard.press("k")
        page.wait_for_url("**/ui/access")
        expect(page.locator("nav.side a[aria-current='page']")).to_have_text("Access")
        page.keyboard.press("j")
        expect(page.locator("tr.is-current")).to_have_count(1)
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.wait_for_url("**/ui")


def test_the_keys_are_listed_and_the_list_closes(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url) as view:
        view.open("/ui")
        view.page.keyboard.press("?")
        expect(view.page.locator("dialog#help")).to_be_visible()
        view.check_accessible()
        view.page.keyboard.press("Escape")
        expect(view.page.locator("dialog#help")).to_be_hidden()
        view.page.keyboard.press("/")
        expect(view.page.locator("#search")).to_be_focused()
        view.page.keyboard.type("g k j ? state:dead")
        expect(view.page.locator("#search")).to_have_value("g k j ? state:dead")
        view.page.keyboard.press("Escape")
        expect(view.page.locator("#search")).not_to_be_focused()


def test_shortcuts_can_be_switched_off(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui/preferences")
        page.select_option("#keys", "off")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("html")).to_have_attribute("data-keys", "off")
        page.wait_for_load_state("load")  # else no script has been asked
        page.keyboard.press("?")
        expect(page.locator("dialog#help")).to_be_hidden()


def test_the_theme_changes_at_once_and_stays(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui")
        for theme in ("light", "dark"):
            with page.expect_response("**/ui/preferences"):
                page.locator("[data-theme-button]").click()
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
        view.open("/ui/preferences")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
