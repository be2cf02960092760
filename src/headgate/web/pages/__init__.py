"""One module per noun. What a module in this folder declares is served without being listed anywhere."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from litestar.handlers import HTTPRouteHandler

from headgate.api.http.routing import routes_in


def all_routes() -> list[HTTPRouteHandler]:
    """The pages and actions of all modules."""
    names = sorted(module.name for module in iter_modules(__path__))
    return [route for name in names for route in routes_in(import_module(f"{__name__}.{name}"))]
