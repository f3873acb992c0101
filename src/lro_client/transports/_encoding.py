"""Calls as HTTP requests: paths, queries and bodies (spec §5, §11.10)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

import attrs

from lro import (
    Any,
    CancelOperationRequest,
    DeclarationError,
    DeleteOperationRequest,
    InvalidArgument,
    ListOperationsRequest,
    LroError,
    TypeRegistry,
    WaitOperationRequest,
)
from lro.types import Json
from lro.wire import Template, dumps
from lro_client._arguments import check_segments
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Request,
    StartRequest,
    WatchOperationsRequest,
)

_ENDINGS: Final = {
    "get": "",
    "list": "",
    "delete": "",
    "cancel": ":cancel",
    "wait": ":wait",
    "batch": ":batchGet",
    "watch": ":watch",
}
"""The custom verbs at the ends of paths (spec §5.4)."""

_OF_PARENTS: Final = frozenset({"list", "batch", "watch"})


@attrs.frozen(kw_only=True)
class Routes:
    """The paths of the verbs, as http rules; ``name`` is the operation's, or the parent's.

    Any name below ``/v1`` is what this library's servers and Google's have. Paths that are not
    given stand below the prefix of the first one that is, in the order of the fields: with
    ``get="/v1beta/{name=**}"`` all are below ``/v1beta``. Services that bind WaitOperation do it in
    several ways (spec §4.10): ``wait_method`` is theirs, ``wait_body`` whether the timeout is sent
    as JSON or, as with GET, in the query.
    """

    get: str = ""
    list: str = ""
    delete: str = ""
    cancel: str = ""
    wait: str = ""
    batch: str = ""
    watch: str = ""
    wait_method: str = "POST"
    wait_body: bool = True

    def __attrs_post_init__(self) -> None:
        given = [path for path in (getattr(self, verb) for verb in _ENDINGS) if path]
        prefix = given[0].partition("{")[0].rstrip("/") if given else "/v1"
        for verb, ending in _ENDINGS.items():
            if not getattr(self, verb):
                # Where names are what follows "operations/", collections are what stands before.
                base = prefix.removesuffix("/operations") if verb in _OF_PARENTS else prefix
                object.__setattr__(self, verb, f"{base}/{{name=**}}{ending}")

    @classmethod
    def below(cls, prefix: str) -> Routes:
        """The defaults below another prefix than ``/v1``, such as ``/v1beta`` or ``/api/v1``.

        Raises:
            InvalidArgument: It does not begin with a slash.
        """
        if not prefix.startswith("/"):
            raise InvalidArgument("prefix", f"must begin with a slash, got {prefix!r:.80}")
        return cls(get=f"{prefix.rstrip('/')}/{{name=**}}")


@attrs.frozen(kw_only=True)
class HttpCall:
    """A call as HTTP: what any client library needs to send it."""

    method: str
    url: str
    params: Mapping[str, str | int] = attrs.field(factory=dict)
    body: bytes | None = None


class Encoder:
    """Makes requests of calls; ``base_url`` goes before the paths, also of starts."""

    def __init__(self, routes: Routes, types: TypeRegistry, base_url: str) -> None:
        self._routes = routes
        self._templates = {verb: Template.parse(getattr(routes, verb)) for verb in _ENDINGS}
        self._types = types
        self._base = base_url.rstrip("/")

    def encode(self, call: Call) -> HttpCall:
        """The HTTP request of a call.

        Raises:
            DeclarationError: A name does not fit its path, or the message cannot be encoded.
        """
        try:
            asked = self._encode(call.request)
        except DeclarationError:
            raise
        except InvalidArgument as exc:
            raise DeclarationError(exc.field, exc.description) from exc
        except LroError as exc:
            raise DeclarationError("message", str(exc)) from exc
        except (TypeError, ValueError) as exc:
            raise DeclarationError("message", f"has no JSON: {exc}") from exc
        whole = not asked.url.startswith("/")  # a start may go to another address
        return asked if whole else attrs.evolve(asked, url=self._base + asked.url)

    def _encode(self, request: Request) -> HttpCall:
        if isinstance(request, StartRequest):
            return self._start(request)
        if isinstance(request, ListOperationsRequest):
            shown: dict[str, str | int] = {
                "filter": request.filter,
                "pageSize": request.page_size,
                "pageToken": request.page_token,
            }
            params = {key: value for key, value in shown.items() if value}
            path = self._listed(request.name)
            return HttpCall(method="GET", url=path, params=params)
        if isinstance(request, WaitOperationRequest):
            return self._wait(request)
        if isinstance(request, (BatchGetOperationsRequest, WatchOperationsRequest)):
            verb = "batch" if isinstance(request, BatchGetOperationsRequest) else "watch"
            body = dumps({"names": list(request.names)})
            return HttpCall(method="POST", url=self._path(verb, request.collection), body=body)
        if isinstance(request, CancelOperationRequest):
            return HttpCall(method="POST", url=self._path("cancel", request.name), body=b"{}")
        if isinstance(request, DeleteOperationRequest):
            return HttpCall(method="DELETE", url=self._path("delete", request.name))
        return HttpCall(method="GET", url=self._path("get", request.name))

    def _path(self, verb: str, name: str) -> str:
        if not name:  # which ``**`` would take for no segment at all
            raise InvalidArgument("name", "must not be empty")
        check_segments("name", name)
        return self._templates[verb].expand({"name": name})

    def _listed(self, name: str) -> str:
        try:
            return self._path("list", _collection(name))
        except InvalidArgument:
            parent = name.removesuffix("/operations")
            try:  # a rule such as "/v1/{name=projects/*}/operations" takes the parent alone
                return self._path("list", parent)
            except InvalidArgument:
                pass
            raise

    def _wait(self, request: WaitOperationRequest) -> HttpCall:
        path, method = self._path("wait", request.name), self._routes.wait_method
        fields = cast("dict[str, Json]", self._types.dump(attrs.evolve(request, name="")))
        if self._routes.wait_body:
            return HttpCall(method=method, url=path, body=dumps(fields))
        return HttpCall(method=method, url=path, params={k: str(v) for k, v in fields.items()})

    def _start(self, request: StartRequest) -> HttpCall:
        message = request.message
        if isinstance(message, Any):
            message = self._types.readable(message).payload
        if isinstance(message, Mapping):
            json.dumps(message, allow_nan=False)  # faster ones send null for what has no JSON
            message = dict(message)
        body = message if isinstance(message, dict) else self._types.dump(message)
        if not isinstance(body, dict):
            raise InvalidArgument("message", f"must be an object in JSON, got {body!r:.80}")
        if request.request_id:
            body = {**body, "requestId": request.request_id}
        if request.validate_only:
            body = {**body, "validateOnly": True}
        target = request.target
        if target.startswith("//") or not target.startswith(("/", "http://", "https://")):
            wanted = "must begin with a slash, or be a whole URL"
            raise InvalidArgument("target", f"{wanted}, got {target!r:.200}")
        return HttpCall(method="POST", url=target, body=dumps(body))


def _collection(name: str) -> str:
    segments = name.split("/") if name else []
    whole = len(segments) % 2 == 1 and segments[-1] == "operations"
    return name if whole else "/".join((*segments, "operations"))
