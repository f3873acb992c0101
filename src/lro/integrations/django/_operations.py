"""Read the settings, make the edge that they describe, and pass it Django's requests."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, Unpack

import attrs
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, PermissionDenied, RequestDataTooBig
from django.http import HttpRequest as Request
from django.http import HttpResponse, RawPostDataException, UnreadablePostError
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

import lro.asgi
import lro.wsgi
from lro import Method, Service, errors
from lro.errors import check_plain_function
from lro.http import EndpointStartKeywords, HttpReply, HttpRequest, OperationsEdge, caller_hook, run
from lro.integrations._base import FrameworkOperations, PathRule, below_prefix

Req = TypeVar("Req")
Meta = TypeVar("Meta")

_OPTIONS: Final = (
    "STARTS",
    "CONSOLE",
    "PARENTS",
    "TRUSTED_ORIGINS",
    "MAX_BODY",
    "POLL_SECONDS",
    "ACCEPTED",
    "MAX_WAIT",
    "MAX_WAITING",
)
WRONG_SETTINGS: Final = (ImproperlyConfigured, errors.LroError, ImportError)
"""The exceptions of :func:`operations` and :func:`service` if the settings are wrong."""

_SETTINGS: Final = ("SERVICE", "CALLER", "PERMISSION", "SCHEMA", *_OPTIONS)


def signed_in_user(request: Request) -> str:
    """Return the primary key of the user who is signed in, as a text.

    Raises:
        Unauthenticated: No user is signed in.
    """
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        raise errors.Unauthenticated("sign in first")
    return str(user.pk)


def configured() -> Mapping[str, Any]:
    """Return the setting ``LRO``.

    Raises:
        ImproperlyConfigured: ``LRO`` is missing or not a dict, has no ``SERVICE``, or has an
            unknown key.
    """
    found: Any = getattr(settings, "LRO", None)
    if not isinstance(found, Mapping) or "SERVICE" not in found:
        raise ImproperlyConfigured('LRO must be a dict with "SERVICE", such as "shop.work.service"')
    for name in found:
        if name not in _SETTINGS:
            known = ", ".join(_SETTINGS)
            raise ImproperlyConfigured(f"LRO has {name!r}, which is not one of {known}")
    return found


@functools.cache
def service() -> Service:
    """Return the service of the project.

    Raises:
        ImproperlyConfigured: The setting ``LRO`` does not name a service.
    """
    path = configured()["SERVICE"]
    found = import_string(path)
    if not isinstance(found, Service):
        raise ImproperlyConfigured(f"LRO['SERVICE'] is {path!r}, which is not an lro.Service")
    return found


class DjangoOperations(FrameworkOperations[Callable[[Request], "str | int | None"], HttpResponse]):
    """The operations of a Django project, served by its views."""

    refusal = PermissionDenied
    blocking = "a Django view"

    def ours(self, error: PermissionDenied) -> errors.LroError:
        """Convert Django's exception to an error of this library."""
        return errors.PermissionDenied(*error.args)

    def response(self, reply: HttpReply) -> HttpResponse:
        """Convert a reply to a response of Django."""
        body, status, headers = reply.parts
        response = HttpResponse(body, status=status, headers=headers)
        if reply.reserved is not None:
            reply.reserved.release()  # the response owns the bytes now
        return response


@functools.cache
def operations() -> DjangoOperations:
    """Return the operations that the settings describe.

    Raises:
        ImproperlyConfigured: The settings cannot be read.
        DeclarationError: An option is wrong.
    """
    given = configured()
    caller = given.get("CALLER", signed_in_user)
    options: Any = {name.lower(): given[name] for name in _OPTIONS if name in given}
    return DjangoOperations(
        service(),
        caller=_permitted(import_string(caller) if isinstance(caller, str) else caller),
        **options,
    )


def start(
    request: Request,
    method: Method[Req, Any, Meta],
    message: Req | None = None,
    **options: Unpack[EndpointStartKeywords[Meta]],
) -> HttpResponse:
    """Start an operation for a request, in a view of your own.

    The caller is that of the request. ``requestId`` and ``validateOnly`` in the JSON body are
    honoured. Without ``message``, the body is the message. The other arguments are those of
    ``Method.start``. Like the library's views, your view may be ``csrf_exempt``, because this
    function refuses POSTs from pages of other sites.

    Returns:
        The response: the operation, or the error.
    """
    asked = _asked(request)
    try:
        body = _body(request, operations().edge.options.max_body)
        asked = attrs.evolve(asked, body=body, mount=_mount_of_operations)
    except errors.LroError as exc:
        return operations().refuse(asked, exc)
    return run(operations().started(asked, method, message, options))


def with_lifespan(app: lro.asgi.App) -> lro.asgi.App:
    """Wrap a project's ASGI application, so that its service starts and stops with the server.

    Django itself ignores ASGI's lifespan events. For ``asgi.py``:
    ``application = with_lifespan(get_asgi_application())``.
    """

    async def served(scope: lro.asgi.Scope, receive: lro.asgi.Receive, send: lro.asgi.Send) -> None:
        if scope["type"] == "lifespan":
            await lro.asgi.live(service(), receive, send)
        else:
            await app(scope, receive, send)

    return served


def answer(edge: OperationsEdge, rule: PathRule, request: Request, **values: str) -> HttpResponse:
    """Answer Django's request to a route of an edge."""
    asked = _asked(request)
    path = below_prefix(asked.path, request.path_info, rule.filled(values))
    asked = attrs.evolve(asked, path=path)
    try:
        body = _body(request, edge.options.max_body)
    except errors.LroError as exc:
        return operations().response(edge.refusal(asked, exc))
    return operations().response(edge.handle(attrs.evolve(asked, body=body)))


def _permitted(
    caller: Callable[[Request], str | int | None],
) -> Callable[[Request], str | int | None]:
    """Wrap ``caller`` in a function that also checks the permission in the settings."""
    check_plain_function("CALLER", caller)
    caller_hook("CALLER", caller)
    permission = configured().get("PERMISSION", "")

    def permitted(request: Any) -> str | int | None:
        name = caller(request)
        if permission and not request.user.has_perm(permission):
            raise errors.PermissionDenied(f"the user has no permission {permission}")
        return name

    return permitted


def _asked(request: Request) -> HttpRequest:
    """Convert Django's request, without its body."""
    scope = getattr(request, "scope", None)
    if scope is not None:  # under ASGI
        asked = lro.asgi.request_of(scope, lro.asgi.raw_path(scope))
    else:
        # Django has decoded these paths as UTF-8, but WSGI decodes bytes as Latin-1.
        paths = {name: _as_latin1(request.META[name]) for name in ("SCRIPT_NAME", "PATH_INFO")}
        asked = lro.wsgi.request_of({**request.META, **paths})
    return attrs.evolve(
        asked,
        native=request,
        mount=lambda given: asked.mount(attrs.evolve(given, native=asked.native)),
    )


def _mount_of_operations(_: HttpRequest) -> str | None:
    """Return the path before ``/v1/operations``, as our URLs can be included anywhere."""
    try:
        path: str = reverse("lro-GetOperation", kwargs={"operation": "-"})
    except NoReverseMatch:
        return None
    return path.removesuffix("/v1/operations/-")


def _as_latin1(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _body(request: Request, limit: int) -> bytes:
    """Return the body of a request.

    Raises:
        RequestTooLarge, MalformedRequest: The body exceeds the limit, or cannot be read.
    """
    length = lro.wsgi.declared_length({"CONTENT_LENGTH": request.META.get("CONTENT_LENGTH")})
    if length is None and not hasattr(request, "scope"):
        return _body_without_length(request, limit)
    if length is not None and length > limit:
        raise errors.RequestTooLarge("body", f"must have at most {limit} bytes")
    try:
        body: bytes = request.body
    except RawPostDataException:  # the project has already read it, for instance as a form
        return b""
    except RequestDataTooBig:
        bound = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raise errors.RequestTooLarge("body", f"must have at most {bound} bytes") from None
    except UnreadablePostError as exc:
        raise errors.MalformedRequest("body", "could not be read to its end") from exc
    lro.wsgi.check_whole(body, length or 0)
    return body


def _body_without_length(request: Request, limit: int) -> bytes:
    """Read a WSGI request's body without ``Content-Length``, which Django treats as empty."""
    bound = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    limit = limit if bound is None else min(limit, bound)
    body = lro.wsgi.read_body(request.META, limit)
    if len(body) > limit:
        raise errors.RequestTooLarge("body", f"must have at most {limit} bytes")
    request.META["wsgi.input"] = io.BytesIO(body)  # for a second start in the same view
    return body
