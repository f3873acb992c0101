"""Names of long-running methods, their OperationInfo, and the registry of both (spec §8)."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError
from lro._model.operation import OperationInfo

_METHOD_NAME: Final = re.compile(
    r"(?:(?P<package>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.)?(?P<service>[A-Za-z_]\w*)\.(?P<name>[A-Za-z_]\w*)",
    re.ASCII,
)
_VERSION: Final = re.compile(r"v[0-9]+[a-z0-9]*")
_STANDARD: Final = re.compile(r"(Get|Create|Update|Delete)([A-Z]\w*)", re.ASCII)
_DELETE: Final = re.compile(r"(Batch)?Delete[A-Z]\w*", re.ASCII)
FINDINGS: Final = {
    "response-type-empty": "an empty response cannot grow; give the method a response of its own",
    "response-type-convention": "the response should be called <Method>Response, or the resource",
    "metadata-type-empty": "empty metadata cannot report progress; give the method its own",
}
"""Warnings about declarations, by code."""
_EMPTY: Final = "google.protobuf.Empty"


@attrs.frozen(eq=False, repr=False)
class MethodName(ByFields):
    """The parts of a method's full name, for example ``acme.images.v1`` ``Images`` ``Resize``."""

    package: str
    service: str
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.package, self.service, self.name) if part)

    @classmethod
    def parse(cls, full_name: str) -> MethodName:
        """Parse ``package.Service.Method``; the package is optional.

        Raises:
            DeclarationError: The text does not have this form.
        """
        if not isinstance(full_name, str):
            wanted = 'is not a name: write @service.method("acme.images.v1.Images.Resize")'
            raise DeclarationError(repr(full_name), wanted)
        found = _METHOD_NAME.fullmatch(full_name)
        if found is None:
            wanted = "is not a method's full name such as acme.images.v1.Images.Resize"
            raise DeclarationError(repr(full_name), wanted)
        return cls(found["package"] or "", found["service"], found["name"])

    @property
    def path(self) -> str:
        """The path of the POST that calls the method: version, service and method."""
        return f"/{self.version or 'v1'}/{_lower_first(self.service)}:{self.verb}"

    @property
    def version(self) -> str:
        """The version in the package, such as ``v1``, or an empty text."""
        return next((part for part in self.package.split(".") if _VERSION.fullmatch(part)), "")

    @property
    def verb(self) -> str:
        """The name of the method with a small first letter."""
        return _lower_first(self.name)

    def qualify(self, type_name: str) -> str:
        """Return the full name of a response or metadata type that this method declares.

        A type of the method's package can be written without the package. A leading dot makes a
        name absolute, and any other name with dots is a full name (spec §8.3(1)).
        """
        if type_name.startswith("."):
            return type_name[1:]
        if "." in type_name or not self.package:
            return type_name
        return f"{self.package}.{type_name}"

    @property
    def standard(self) -> tuple[str, str]:
        """The verb and the noun of a standard method, such as Get and Book, or empty texts."""
        found = _STANDARD.fullmatch(self.name)
        return ("", "") if found is None else (found[1], found[2])

    def convention_findings(self, info: OperationInfo) -> list[str]:
        """Return warnings about unconventional types, as codes of spec §8.2 and §8.4.

        An unknown type, written ``"."``, gives no warning.
        """
        findings = []
        response = self.qualify(info.response_type)
        wanted = self.standard[1] or f"{self.name}Response"
        if response == _EMPTY:
            if not _DELETE.fullmatch(self.name):
                findings.append("response-type-empty")
        elif response and response.rpartition(".")[2] != wanted:
            findings.append("response-type-convention")
        if self.qualify(info.metadata_type) == _EMPTY:
            findings.append("metadata-type-empty")
        return findings


def _lower_first(name: str) -> str:
    return name[:1].lower() + name[1:]


class OperationInfoRegistry:
    """The methods that return operations, with their types."""

    def __init__(self) -> None:
        self._infos: dict[str, OperationInfo] = {}

    def register(self, full_name: str, info: OperationInfo) -> list[str]:
        """Declare a method. Its two types are stored by their full names.

        Returns:
            The warnings of :meth:`MethodName.convention_findings`.

        Raises:
            DeclarationError: The name is malformed or taken, or a type is missing (spec §8.2).
        """
        method = MethodName.parse(full_name)
        if not info.response_type:
            raise DeclarationError(full_name, "declares no response type (response-type-missing)")
        if not info.metadata_type:
            raise DeclarationError(full_name, "declares no metadata type (metadata-type-missing)")
        if full_name in self._infos:
            raise DeclarationError(full_name, "is declared twice")
        self._infos[full_name] = OperationInfo(
            method.qualify(info.response_type), method.qualify(info.metadata_type)
        )
        return method.convention_findings(info)

    def __getitem__(self, full_name: str) -> OperationInfo:
        """Return the declaration of a method.

        Raises:
            DeclarationError: The method is not declared (missing-operation-info).
        """
        try:
            return self._infos[full_name]
        except KeyError:
            raise DeclarationError(full_name, "is not declared (missing-operation-info)") from None

    def __contains__(self, full_name: object) -> bool:
        return full_name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)


@attrs.frozen(eq=False, repr=False)
class Hint(ByFields):
    """The annotation of a message class in a function, and a description of where it stands.

    ``annotation`` is None if there is no annotation, and ``NoneType`` if None is the annotation.
    """

    annotation: object = None
    where: str = ""


@attrs.frozen(eq=False, repr=False)
class Signature(ByFields):
    """The message classes in a function's annotations, and whether the function takes a job."""

    request: Hint = Hint()
    response: Hint = Hint()
    metadata: Hint = Hint()
    takes_job: bool = False
    is_async: bool = False

    @classmethod
    def of(cls, function: Callable[..., object]) -> Signature:
        """Read ``def f(request: R, job: Job[M]) -> S``; the job is optional.

        Raises:
            DeclarationError: The function does not take a request, or a request and a job.
        """
        label = getattr(function, "__qualname__", repr(function))
        parameters = list(inspect.signature(function).parameters.values())
        if not 1 <= len(parameters) <= 2:
            raise DeclarationError(label, "must take the request, or the request and the job")
        names = [parameter.name for parameter in parameters]
        if names == ["job", "request"]:
            raise DeclarationError(label, "must take the request first, and then the job")
        try:
            hints = typing.get_type_hints(function)
        except (NameError, TypeError) as exc:  # TypeError: a callable that is not a function
            raise DeclarationError(label, f"has annotations that cannot be read: {exc}") from exc
        first, *rest = names
        job = typing.get_args(hints.get(rest[0])) if rest else ()
        return cls(
            request=Hint(hints.get(first), f"the parameter {first!r} of {label}"),
            response=Hint(hints.get("return"), f"the return of {label}"),
            metadata=Hint(job[0], f"the parameter {rest[0]!r} of {label}") if job else Hint(),
            takes_job=bool(rest),
            is_async=inspect.iscoroutinefunction(function),
        )
