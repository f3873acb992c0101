"""Operations in a Flask application: routes in a blueprint, callers from its authentication."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar, Unpack

import attrs

from lro import Method
from lro.errors import LroError, MalformedRequest, MissingExtra, RequestTooLarge, check_instance
from lro.http import EndpointStartKeywords, HttpReply, OperationsEdge, run
from lro.integrations._base import (
    FrameworkOperations,
    PathRule,
    below_prefix,
    error_of,
    mounted_at,
    rules_by_path,
)
from lro.wsgi import check_whole, declared_length, request_of

try:
    from flask import Blueprint, Flask, Response, current_app, request
    from werkzeug.exceptions import ClientDisconnected, HTTPException, RequestEntityTooLarge
except ImportError as _exc:
    raise MissingExtra("lro.integrations.flask", "flask") from _exc

Req = TypeVar("Req")
Meta = TypeVar("Meta")
View: TypeAlias = Callable[..., Any]


class FlaskOperations(FrameworkOperations[Callable[[], "str | int | None"], Response]):
    """The operations of a service, for Flask applications.

    ``caller`` returns the name of the current request's caller, or None for a caller without a
    name; an example is ``lambda: current_user.get_id()``. It may raise Flask's HTTP
    exceptions (``abort(401)``) and :class:`lro.errors.Unauthenticated`. The other options are those
    of :class:`lro.http.OperationsEdge`. With ``starts``, POSTs to these paths start operations.
    ``console`` is a path such as ``"/console"`` at which the console is served, or an
    :class:`lro.console.Console`; without ``caller`` it answers only on this machine.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or ``caller`` is not a plain function.
    """

    refusal: ClassVar[type[Exception]] = HTTPException
    nobody = "lambda: None"
    blocking = "a WSGI application"

    def arguments(self, native: Any) -> tuple[Any, ...]:  # noqa: ARG002 - Flask has it in a context
        """Return no arguments: the request is in Flask's context."""
        return ()

    def ours(self, error: HTTPException) -> LroError:
        """Convert an HTTP exception to an error of this library."""
        headers = dict(error.get_headers())
        return error_of(error.code or 500, error.description or error.name, headers)

    def response(self, reply: HttpReply) -> Response:
        """Convert a reply to a response of Flask."""
        response = Response(*reply.parts)
        if reply.reserved is not None:
            reply.reserved.release()  # the response owns the bytes now
        return response

    def init_app(
        self,
        app: Flask,
        *,
        url_prefix: str | None = None,
        decorators: Sequence[Callable[[View], View]] = (),
    ) -> Blueprint:
        """Serve the operations in an application, below a prefix if one is given.

        ``decorators``, such as ``login_required``, are applied to each view as if written above it
        in this order. If a decorator raises an HTTP exception, the caller gets an error in this
        library's format.

        Returns:
            The blueprint of the views. Pass it to ``CSRFProtect.exempt``: the views themselves
            refuse calls from pages of other sites.
        """
        check_instance("app", app, Flask, "a Flask application")
        routes = Blueprint("lro", __name__, url_prefix=url_prefix)
        rules = [
            (edge, path, *rest)
            for edge in self.edges
            for path, rest in rules_by_path(edge, "<*>", "<path:*>").items()
        ]
        for number, (edge, path, rule, methods) in enumerate(rules):
            view: View = functools.partial(self._answer, edge, rule)
            for decorate in reversed(decorators):
                view = decorate(functools.update_wrapper(view, FlaskOperations._answer))
            routes.add_url_rule(
                path,
                endpoint=f"{rule.rpc.replace('.', '_')}_{number}",
                view_func=functools.update_wrapper(
                    functools.partial(self._guarded, view), FlaskOperations._answer
                ),
                methods=methods,
                provide_automatic_options=False,
            )
        app.register_blueprint(routes)
        app.extensions["lro"] = self
        self.edge.service.edges.end_waits_at_signals()  # views may run in other threads
        return routes

    def start(
        self,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Response:
        """Start an operation for the current request, in a view of your own.

        The caller is that of the request. ``requestId`` and ``validateOnly`` in the JSON body are
        honoured. Without ``message``, the body is the message. The other arguments are those of
        ``Method.start``.

        Returns:
            The response: the operation, or the error.
        """
        asked = request_of(request.environ)
        try:
            asked = attrs.evolve(asked, body=self._body())
        except LroError as exc:
            return self.refuse(asked, exc)
        asked = mounted_at(asked, current_app.blueprints["lro"].url_prefix or "")
        return run(self.started(asked, method, message, options))

    def _guarded(self, view: View, **values: Any) -> Any:
        try:
            return view(**values)
        except HTTPException as exc:
            if exc.response is not None:  # already a complete response, such as a redirect
                return exc.response
            return self.refuse(request_of(request.environ), self.ours(exc))

    def _answer(self, edge: OperationsEdge, rule: PathRule, **values: Any) -> Response:
        asked = request_of(request.environ)
        path = below_prefix(asked.path, request.path, rule.filled(values))
        asked = attrs.evolve(asked, path=path)
        try:
            return self.response(edge.handle(attrs.evolve(asked, body=self._body())))
        except LroError as exc:
            return self.response(edge.refusal(asked, exc))

    def _body(self) -> bytes:
        """Read the body of the current request, up to the limit.

        Raises:
            RequestTooLarge, MalformedRequest: The body is too large, or cannot be read to its end.
        """
        length = declared_length(request.environ) or 0
        own, limit = request.max_content_length, self.edge.options.max_body
        limit = limit if own is None else min(own, limit)
        request.max_content_length = limit + 1  # Flask cuts a body without a length at this limit
        try:
            body = request.get_data()
            over = len(body) > limit
        except RequestEntityTooLarge:
            body, over = b"", True
        except ClientDisconnected as exc:
            raise MalformedRequest("body", "could not be read to its end") from exc
        if over:
            raise RequestTooLarge("body", f"must have at most {limit} bytes")
        if body:  # the edge refuses an empty body if the application has read it
            check_whole(body, length)
        return body


__all__ = ["FlaskOperations"]
