"""Webhooks: create with a secret that is shown once, rotate it, test, deliveries with the answer, resend."""

from __future__ import annotations

import re

import httpx

from tests.e2e.web.conftest import OPERATOR, VIEWER, Browser, Sign
from tests.support.dashboard import text_of

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")
FORM = {"url": "https://93.184.216.34/hook", "events": "job.dead", "description": "on call", "enabled": "1"}


def create(browser: Browser) -> tuple[str, str]:
    """A webhook and its secret."""
    browser.page("/ui/webhooks/new")
    made = browser.submit("/ui/webhooks", FORM)
    assert made.status_code == 200, made.text
    (secret,) = set(SECRET.findall(made.text.replace("&#43;", "+").replace("&#x2B;", "+")))
    (webhook_id,) = set(re.findall(r"/ui/webhooks/([0-9a-f-]{36})", made.text))
    return webhook_id, secret


def test_a_secret_is_shown_once_and_can_be_rotated(sign: Sign) -> None:
    browser = sign(OPERATOR)
    webhook_id, secret = create(browser)
    for path in ("/ui/webhooks", f"/ui/webhooks/{webhook_id}", f"/ui/webhooks/{webhook_id}/edit"):
        assert secret not in browser.page(path).text
    unconfirmed = browser.submit(f"/ui/webhooks/{webhook_id}/rotate", {"overlap": "2h"})
    assert not SECRET.search(unconfirmed.text), "it asks first"
    rotated = browser.submit(f"/ui/webhooks/{webhook_id}/rotate", {"overlap": "2h", "confirmed": "1"})
    (newer,) = set(SECRET.findall(rotated.text))
    assert newer != secret
    assert "2 secrets" in text_of(browser.page(f"/ui/webhooks/{webhook_id}"))


def test_a_test_makes_a_delivery_with_its_attempts(sign: Sign, api: httpx.Client) -> None:
    browser = sign(OPERATOR)
    webhook_id, _ = create(browser)
    browser.page(f"/ui/webhooks/{webhook_id}")
    answer = browser.submit(f"/ui/webhooks/{webhook_id}/test")
    assert answer.status_code == 303
    page = browser.page(answer.headers["location"])
    assert "ping" in text_of(page)
    assert "ping" in text_of(browser.page(f"/ui/webhooks/{webhook_id}"))
    assert browser.page(f"/ui/webhooks/{webhook_id}?state=nonsense").status_code == 400
    api.delete(f"/v1/webhooks/{webhook_id}")


def test_a_webhook_is_edited_disabled_and_deleted(sign: Sign) -> None:
    browser = sign(OPERATOR)
    webhook_id, _ = create(browser)
    browser.page(f"/ui/webhooks/{webhook_id}/edit")
    edited = {**FORM, "version": "1", "events": "job.completed", "topics": "mail billing-*"}
    assert browser.submit(f"/ui/webhooks/{webhook_id}", edited).status_code == 303
    text = text_of(browser.page(f"/ui/webhooks/{webhook_id}"))
    assert "mail, billing-*" in text
    assert browser.submit(f"/ui/webhooks/{webhook_id}/enable", {"enabled": "no"}).status_code == 303
    assert "Events wait until it is enabled" in text_of(browser.page(f"/ui/webhooks/{webhook_id}"))
    assert browser.submit(f"/ui/webhooks/{webhook_id}", edited).status_code == 409, "the version has changed"
    assert browser.submit(f"/ui/webhooks/{webhook_id}/delete", {"confirmed": "1"}).status_code == 303
    assert browser.page(f"/ui/webhooks/{webhook_id}").status_code == 404


def test_a_form_without_events_names_the_field(sign: Sign) -> None:
    browser = sign(OPERATOR)
    browser.page("/ui/webhooks/new")
    answer = browser.submit("/ui/webhooks", {"url": FORM["url"]})
    assert answer.status_code == 400
    assert "at least one event" in text_of(answer)


def test_a_viewer_can_look_and_nothing_else(sign: Sign) -> None:
    webhook_id, _ = create(sign(OPERATOR))
    browser = sign(VIEWER)
    page = browser.page(f"/ui/webhooks/{webhook_id}")
    assert "Rotate" not in text_of(page)
    assert browser.submit(f"/ui/webhooks/{webhook_id}/rotate", {"confirmed": "1"}).status_code == 403
