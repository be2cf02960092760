"""Every page in both themes and three widths, filled and empty: accessible, silent, and never wider than the window."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import NARROW, NARROWEST, VIEWER, WIDE, View, viewing
from tests.browser.routes import filled, open_paths, page_paths
from tests.browser.seed import CANARY, Seed

THEMES = ("light", "dark")


@pytest.mark.parametrize("path", page_paths())
@pytest.mark.parametrize("theme", THEMES)
def test_a_page_is_accessible_silent_and_fits(
    browser: Browser, dev_url: str, seed: Seed, path: str, theme: str
) -> None:
    """The seed has markup in every field of text, and so has the query: it stays text."""
    with viewing(browser, dev_url, theme=theme) as view:
        answer = view.open(filled(path, seed.values))
        assert answer is not None
        assert answer.status == 200
        check_text(view)
        check_both_widths(view)
        if theme == "dark":  # the rest does not depend on colours
            return
        view.check_width(NARROWEST)
        view.expected.append("the server responded with a status of 400")
        view.open(f"{filled(path, seed.values).partition('?')[0]}?{urlencode({'filter': CANARY, 'next': CANARY})}")
        check_text(view)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("path", open_paths())
def test_a_page_without_login_is_accessible_silent_and_fits(
    browser: Browser, closed_url: str, path: str, theme: str
) -> None:
    with viewing(browser, closed_url, theme=theme) as view:
        answer = view.open(f"{path}?{urlencode({'next': CANARY})}")
        assert answer is not None
        assert (answer.status, view.page.url.partition("?")[0]) == (200, closed_url + path)
        check_text(view)
        check_both_widths(view)
        view.check_width(NARROWEST)


@pytest.mark.parametrize("theme", THEMES)
def test_pages_with_nothing_to_show_are_accessible(browser: Browser, closed_url: str, theme: str) -> None:
    """As a viewer: what a person may not do is not offered, and nothing looks broken without it."""
    size = NARROW if theme == "dark" else WIDE
    with viewing(browser, closed_url, theme=theme, size=size) as view:
        view.login(VIEWER)
        paths = view.page.eval_on_selector_all("nav.side a", "(links) => links.map((one) => one.pathname)")
        assert len(paths) > 5
        for path in paths:
            answer = view.open(path)
            assert answer is not None
            assert answer.status == 200, path
            view.check_accessible()
            view.check_width(size)


def check_both_widths(view: View) -> None:
    """Fail unless the page is accessible wide and narrow, and fits."""
    view.check_accessible()
    view.check_width(NARROW)
    view.check_accessible()


def check_text(view: View) -> None:
    """Fail if text of others has become markup."""
    assert view.page.locator("img[src='x']").count() == 0
    assert view.page.locator("script:not([src]):not([type='application/json'])").count() == 0


def test_an_error_page_is_accessible_and_says_what_to_do(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url) as view:
        view.expected.append("404")
        answer = view.open("/ui/nothing-here")
        assert answer is not None
        assert answer.status == 404
        assert "Not found" in view.page.inner_text("main")
        view.check_accessible()
        view.check_width(NARROWEST)


def test_a_chart_that_gets_newer_data_is_not_taken_for_a_part_of_it(browser: Browser, dev_url: str, seed: Seed) -> None:
    """Only what a visitor has chosen by dragging has a link to its jobs, and a way back."""
    del seed
    zoomed = "(chart) => !chart.shadowRoot.querySelector('.zoomed').hidden"
    with viewing(browser, dev_url) as view:
        view.open("/ui/charts")
        chart = view.page.locator("hg-chart").first
        chart.evaluate("async (chart) => { await customElements.whenDefined('hg-chart'); chart.plot.redraw(); }")
        chart.evaluate(
            """(chart) => {
                const found = chart.read();
                const step = found.times[1] - found.times[0];
                found.times = found.times.map((at) => at + 3 * step);
                chart.setAttribute("data", JSON.stringify(found));
                return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            }"""
        )
        assert not chart.evaluate(zoomed)
        chart.evaluate(
            """(chart) => {
                const { times } = chart.read();
                chart.plot.setScale("x", { min: times[0] + 1, max: times[times.length - 1] });
                return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            }"""
        )
        assert chart.evaluate(zoomed)
        view.check_accessible()
        view.check()


def test_a_chart_of_a_chosen_time_is_drawn_again_when_it_gets_newer_data(
    browser: Browser, dev_url: str, seed: Seed
) -> None:
    del seed
    legend = "[...chart.shadowRoot.querySelectorAll('.u-series .u-value')].slice(1).map((one) => one.textContent)"
    with viewing(browser, dev_url) as view:
        view.open("/ui/charts")
        view.page.select_option("#live-mode", "off")  # an update would bring the stored figures back
        found = view.page.locator("#throughput hg-chart").evaluate(
            f"""async (chart) => {{
                const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                const found = chart.read();
                chart.plot.setScale("x", {{ min: found.times[10], max: found.times[20] }});
                await frames();
                const before = chart.plot.ctx.canvas.toDataURL();
                for (const [index, line] of found.lines.entries()) line.values = line.values.map(() => 70 + index);
                chart.setAttribute("data", JSON.stringify(found));
                await frames();
                const {{ min, max }} = chart.plot.scales.x;
                return {{
                    drawn: chart.plot.ctx.canvas.toDataURL() !== before,
                    legend: {legend},
                    chosen: min === found.times[10] && max === found.times[20],
                }};
            }}"""
        )
        assert found == {"drawn": True, "legend": ["72", "71", "70", "73"], "chosen": True}


def test_stacked_columns_add_up_keep_gaps_and_differ_in_more_than_colour(
    browser: Browser, dev_url: str, seed: Seed
) -> None:
    del seed
    with viewing(browser, dev_url) as view:
        view.open("/ui/charts")
        view.page.select_option("#live-mode", "off")  # an update would bring the stored figures back
        chart = view.page.locator("#throughput hg-chart")
        chart.evaluate(
            """async (chart) => {
                await customElements.whenDefined("hg-chart");
                const found = chart.read();
                for (const [index, line] of found.lines.entries()) {
                    line.values = line.values.map((_value, at) => (at < 5 ? null : index + 1));
                }
                chart.setAttribute("data", JSON.stringify(found));
                return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            }"""
        )
        newest = "(chart) => chart.plot.data.slice(1).map((values) => [values[0], values.at(-1)])"
        # From the top: failed for good on failed and retried on completed. Submitted is a line.
        assert chart.evaluate(newest) == [[None, 6], [None, 3], [None, 1], [None, 4]]
        row = "[...chart.shadowRoot.querySelectorAll('.u-series')].slice(1)"
        legend = f"(chart) => {row}.map((one) => one.querySelector('.u-value').textContent)"
        assert chart.evaluate(legend) == ["3", "2", "1", "4"], "each its own value, not the height of the stack"
        marks = f"(chart) => {row}.map((one) => one.querySelector('.u-marker').style.background)"
        assert len(set(chart.evaluate(marks))) == 4
        chart.evaluate("(chart) => chart.plot.setSeries(2, { show: false })")
        assert chart.evaluate(newest)[0] == [None, 4], "what is switched off is not part of the stack"
        view.check()
