"""OpenAPI 3.1 documents of services: for tools that generate clients, tests and pages (spec §5.17).

An application of :mod:`lro.asgi` or :mod:`lro.wsgi` serves its document with the option
``openapi=Document()``. :func:`describe` makes the document of an application, or of a service
alone. :func:`add_to` adds the paths of an application to the paths that FastAPI describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lro.errors import check_function, check_text
from lro.openapi._document import Document, Served, describe

__all__ = ["Document", "Served", "add_to", "describe"]


def add_to(app: Any, operations: Served, *, prefix: str = "") -> None:
    """Add the paths of an application of this library to the OpenAPI document of a FastAPI app.

    FastAPI then shows these paths in ``/openapi.json`` and ``/docs``. If both applications describe
    the same call, FastAPI's description is kept. ``prefix`` is the path at which ``operations`` is
    mounted.

    Raises:
        DeclarationError: An argument is not of its type.
    """
    check_function("app.openapi", getattr(app, "openapi", None))
    check_text("prefix", prefix)
    own: Callable[[], dict[str, Any]] = app.openapi
    added = describe(operations)
    last: tuple[object, dict[str, Any]] = (None, {})

    def openapi() -> dict[str, Any]:
        nonlocal last
        document = own()
        if document is not last[0]:  # FastAPI makes a new document when routes are added
            last = document, _merged(document, added, prefix)
        return last[1]

    app.openapi = openapi


def _merged(own: Mapping[str, Any], added: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    paths = dict(own.get("paths", {}))
    security = {"security": added["security"]} if "security" in added else {}
    for path, calls in added["paths"].items():
        secured = {method: {**security, **call} for method, call in calls.items()}
        paths[prefix + path] = {**secured, **paths.get(prefix + path, {})}
    components = dict(own.get("components", {}))
    for kind, named in added["components"].items():
        components[kind] = {**named, **components.get(kind, {})}
    webhooks = {**added.get("webhooks", {}), **own.get("webhooks", {})}
    more = {"webhooks": webhooks} if webhooks else {}
    return {**own, "paths": paths, **more, "components": components}
