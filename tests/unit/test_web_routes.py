"""Pages and actions: each follows the rule of a gRPC method, and no action does what REST cannot do."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, cast

from litestar.handlers import HTTPRouteHandler

from headgate.api.http.app import ROUTES
from headgate.api.http.auth import OPEN, RULE
from headgate.control.permissions import RULES
from headgate.web.app import new_app
from headgate.web.navigation import ITEMS
from headgate.web.pages import all_routes
from headgate.web.routing import PREFIX, rule_of


def test_every_page_and_action_names_a_rule_or_is_open_on_purpose() -> None:
    for route in all_routes():
        assert bool(route.opt.get(OPEN)) != (route.opt.get(RULE) in RULES), route
    assert {path for route in all_routes() if route.opt.get(OPEN) for path in route.paths} == {
        f"{PREFIX}/{name}" for name in ("login", "logout", "preferences")
    }


def test_no_action_does_what_rest_cannot_do() -> None:
    served = {route.opt[RULE] for route in ROUTES if isinstance(route, HTTPRouteHandler) and RULE in route.opt}
    actions = {route.opt[RULE] for route in all_routes() if "POST" in route.http_methods and RULE in route.opt}
    assert actions - served == set()


def test_changes_are_made_by_post_and_pages_change_nothing() -> None:
    assert {method for route in all_routes() for method in route.http_methods} == {"GET", "POST"}


def test_the_menu_names_rules_and_letters_of_its_own() -> None:
    assert all(rule_of(item.uses) in RULES for item in ITEMS)
    assert len({item.key for item in ITEMS}) == len(ITEMS)


def test_every_page_says_what_it_is_for() -> None:
    assert [route for route in all_routes() if not inspect.getdoc(route.fn)] == []


def test_every_page_declares_its_parameters_without_a_warning() -> None:
    new_app(cast("Any", SimpleNamespace(version="1", instance="one", validator=None)))  # warnings are errors
