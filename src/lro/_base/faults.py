"""Errors of what is not there or set up wrongly: routes, verbs, declarations, codecs, extras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lro._base.details import ResourceInfo
from lro._base.errors import OPERATION_TYPE, LroError, PermissionDenied, ResourceExhausted
from lro._base.status import Code


def _clipped(path: str) -> str:
    return path if len(path) <= 200 else path[:200] + "..."


class RouteNotFound(LroError):
    """No route of the server has this path (spec §5.7(2))."""

    code = Code.NOT_FOUND
    reason = "ROUTE_NOT_FOUND"
    fact_names = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = _clipped(path)

    def __str__(self) -> str:
        return f"there is nothing at {self.path}"


class HttpMethodNotAllowed(LroError):
    """The path exists, but not with this HTTP method (spec §5.7(4)). ``allow`` is sorted."""

    code = Code.UNIMPLEMENTED
    reason = "HTTP_METHOD_NOT_ALLOWED"

    def __init__(self, method: str, path: str, allow: tuple[str, ...]) -> None:
        super().__init__(method, path, allow)
        self.method, self.path, self.allow = method, _clipped(path), allow

    def __str__(self) -> str:
        return f"{self.path} takes {', '.join(self.allow)}, not {self.method}"

    def facts(self) -> Mapping[str, str]:
        return {"method": self.method, "path": self.path, "allow": ", ".join(self.allow)}


class MethodNotSupported(LroError):
    """The service has switched this verb off (spec §3.9)."""

    code = Code.UNIMPLEMENTED
    reason = "METHOD_NOT_SUPPORTED"
    fact_names = ("method",)

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        return f"{self.method} is not supported by this service"


class StreamsNotSupported(MethodNotSupported):
    """Watch was asked of a server that cannot stream without holding a thread (spec §3.11)."""

    def __str__(self) -> str:
        return (
            f"{self.method} is not supported here: a stream would hold a thread of this server for"
            " as long as the operations run; use WaitOperation or BatchGetOperations"
        )


class NameRefused(PermissionDenied):
    """The caller may not see one of several operations, so that the whole call is refused."""

    fact_names = ("name",)

    def __init__(self, name: str, description: str) -> None:
        super().__init__(description)
        self.args = (name, description)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"

    def more_details(self) -> Sequence[object]:
        return (ResourceInfo(resource_type=OPERATION_TYPE, resource_name=self.name),)


class CrossSiteRequest(PermissionDenied):
    """A page of another site made a call that may change something (spec §5.9(5)).

    ``origin`` is the ``Origin`` of the request, empty if it has none.
    """

    reason = "CROSS_SITE_REQUEST"
    fact_names = ("origin",)

    def __init__(self, origin: str) -> None:
        self.origin = _clipped(origin)
        page = f"a page of {self.origin!r}" if origin else "a page of another site"
        super().__init__(f"{page} may not make this call: trusted_origins does not name its origin")
        self.args = (origin,)


class PartialSuccessNotSupported(LroError):
    """``return_partial_success`` was asked for (spec §1.6(2))."""

    code = Code.UNIMPLEMENTED
    reason = "PARTIAL_SUCCESS_NOT_SUPPORTED"

    def __str__(self) -> str:
        return "return_partial_success is not supported by this service"


class HookFailed(LroError):
    """A hook of the application did not say yes or no: the call is refused (spec §3.1(5))."""

    def __init__(self, hook: str, description: str) -> None:
        super().__init__(hook, description)
        self.hook, self.description = hook, description

    def __str__(self) -> str:
        return f"{self.hook} {self.description}"


class DeclarationError(LroError, ValueError):
    """An argument, message class, method or template cannot be taken as it is declared."""

    code = Code.FAILED_PRECONDITION
    reason = "INVALID_DECLARATION"

    def __init__(self, subject: str, description: str) -> None:
        super().__init__(subject, description)
        self.subject, self.description = subject, description

    def __str__(self) -> str:
        return f"{self.subject}: {self.description}"


class EncodingError(LroError):
    """A message cannot be packed or printed: what it is, where in it, and why."""

    reason = "ENCODING_FAILED"

    def __init__(self, type_name: str, path: str, description: str) -> None:
        super().__init__(type_name, path, description)
        self.type_name, self.path, self.description = type_name, path, description

    def __str__(self) -> str:
        where = f" field {self.path}" if self.path else ""
        return f"{self.type_name}:{where} {self.description}"


class MessageTooLarge(EncodingError):
    """A message of an operation is larger than the service keeps; ``setting`` is of ``Limits``."""

    reason = "MESSAGE_TOO_LARGE"
    fact_names = ("type_name", "size", "limit", "setting")

    def __init__(self, type_name: str, size: int, limit: int, setting: str) -> None:
        text = f"has {size} bytes, at most {limit} are kept (the setting is Limits.{setting})"
        super().__init__(type_name, "", text)
        self.args = (type_name, size, limit, setting)
        self.size, self.limit, self.setting = size, limit, setting


class BatchTooLarge(LroError):
    """The operations of a BatchGet have more bytes together than a reply may have."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "BATCH_TOO_LARGE"
    fact_names = ("names", "limit")

    def __init__(self, names: int, limit: int) -> None:
        super().__init__(names, limit)
        self.names, self.limit = names, limit

    def __str__(self) -> str:
        return (
            f"the {self.names} operations have more than {self.limit} bytes together: ask for fewer"
            " names at once (the setting is Limits.page_bytes)"
        )


class TooManyHeld(ResourceExhausted):
    """So many calls are held, or operations watched, that one more is refused; see ``Limits``."""

    reason = "TOO_MANY_HELD"
    fact_names = ("limit", "setting")

    def __init__(self, what: str, limit: int, setting: str) -> None:
        text = f"{what}: at most {limit} at once (the setting is Limits.{setting}); ask again later"
        super().__init__(text)
        self.args = (what, limit, setting)
        self.limit, self.setting = limit, setting


class UnknownType(LroError):
    """A type name has no codec in the registry (spec §1.14(2))."""

    reason = "UNKNOWN_TYPE"

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name)
        self.type_name = type_name

    def __str__(self) -> str:
        return f"the message type {self.type_name!r} is not registered"


class MissingExtra(LroError):
    """An optional dependency is not installed: which part needs which extra."""

    code = Code.FAILED_PRECONDITION
    reason = "MISSING_EXTRA"

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(part, extra)
        self.part, self.extra = part, extra

    def __str__(self) -> str:
        return f"{self.part} needs the extra {self.extra!r}: pip install 'lro[{self.extra}]'"
