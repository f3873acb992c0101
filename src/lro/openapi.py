"""OpenAPI 3.1 documents of services: for tools that generate clients, tests and pages (spec §5.17).

An application of :mod:`lro.asgi` or :mod:`lro.wsgi` makes its own, ``app.openapi()``, and serves it
with its option ``openapi``. :func:`describe` makes that of a service without one, and
:func:`add_to` adds the paths of an application to those that FastAPI describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lro._base.arguments import check_function, check_instance, check_text, check_texts
from lro._base.status import Json
from lro._engine.service import Service
from lro._http.document import Document, make_document
from lro._http.edge import Starts, start_handlers

__all__ = ["Document", "Documented", "add_to", "describe"]


class Documented(Protocol):
    """What has an OpenAPI document: an application of ours, an edge, a FastAPI application."""

    def openapi(self) -> dict[str, Any]:
        """The document."""
        ...


def describe(
    service: Service,
    *,
    starts: Starts | None = None,
    parents: Sequence[str] = (),
    document: Document | None = None,
) -> dict[str, Json]:
    """The OpenAPI document of a service: of the verbs that it offers, and of its starts.

    ``starts`` and ``parents`` are as ``OperationsApp`` takes them; without ``starts``, the methods
    that have been declared with ``path=`` are in it. ``document`` says what stands beside the
    paths.

    Raises:
        DeclarationError: An argument is not of its type, or as for ``OperationsApp``.
    """
    check_instance("service", service, Service, "a Service")
    check_texts("parents", parents)
    if document is not None:
        check_instance("document", document, Document, "an lro.openapi.Document")
    if starts is None:
        starts = any(spec.options.path for spec in service.specs.values())
    served = [(one.full_name, one.rule) for one in start_handlers(service, starts)]
    return make_document(service, served, parents, document or Document())


def add_to(app: Any, operations: Documented, *, prefix: str = "") -> None:
    """Add the paths of an application of ours to the OpenAPI document of a FastAPI application.

    They are then in its ``/openapi.json`` and ``/docs``, beside its own, which win where both have
    one. ``prefix`` is where ``operations`` is mounted, such as ``/api``.

    Raises:
        DeclarationError: An argument is not of its type.
    """
    check_function("app.openapi", getattr(app, "openapi", None))
    check_function("operations.openapi", getattr(operations, "openapi", None))
    check_text("prefix", prefix)
    own: Callable[[], dict[str, Any]] = app.openapi
    last: tuple[object, dict[str, Any]] = (None, {})

    def openapi() -> dict[str, Any]:
        nonlocal last
        document = own()
        if document is not last[0]:  # FastAPI makes another when routes are added
            last = document, _merged(document, operations.openapi(), prefix)
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
