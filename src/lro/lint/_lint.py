"""The rules of ``lro lint`` and their findings."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import attrs

from lro.errors import InvalidArgument
from lro.lint._descriptors import (
    MISSING,
    NOT_IMPORTED,
    NOT_QUALIFIED,
    OPERATION,
    DescriptorSet,
    MethodDescriptor,
    Resolution,
    candidates_for,
    resolve,
)
from lro.types import Empty, OperationInfo, OperationInfoRegistry, full_name


class Severity(enum.StrEnum):
    """Severity of a finding: ``error`` for a broken rule, ``warning`` for a broken convention."""

    ERROR = "error"
    WARNING = "warning"


def _codes(errors: str, warnings: str) -> dict[str, Severity]:
    found = dict.fromkeys(errors.split(), Severity.ERROR)
    return found | dict.fromkeys(warnings.split(), Severity.WARNING)


LINT_CODES: Final[Mapping[str, Severity]] = _codes(
    """
    missing-operation-info operation-info-not-allowed streaming-response
    response-type-missing metadata-type-missing
    response-type-unresolved metadata-type-unresolved
    response-type-not-imported metadata-type-not-imported
    response-type-not-qualified metadata-type-not-qualified
    """,
    "response-type-empty metadata-type-empty response-type-convention",
)
"""Codes of :func:`lro.lint.lint` (spec §8.2)."""

BREAKING_CODES: Final[Mapping[str, Severity]] = _codes(
    """
    response-type-changed metadata-type-changed operation-info-removed method-removed
    return-type-changed field-number-changed field-became-required
    """,
    "",
)
"""Codes of :func:`lro.lint.breaking`: those of spec §8.5, and two for fields."""

UNUSED_ALLOWANCE: Final = "unused-allowance"
SEVERITIES: Final = {**LINT_CODES, **BREAKING_CODES, UNUSED_ALLOWANCE: Severity.WARNING}


@attrs.frozen(kw_only=True)
class Finding:
    """A problem with a method.

    ``method`` is the method's full name, ``message`` is a sentence about the problem and the fix,
    and ``file`` is the name of the method's file in the set. ``line`` and ``column`` are the start
    of the method, counted from 1; None if the set has no source information.
    """

    method: str
    code: str
    severity: Severity
    message: str
    file: str = ""
    line: int | None = None
    column: int | None = None


@attrs.frozen(kw_only=True)
class Breaking(Finding):
    """A finding of a comparison; if a type has changed, ``old`` and ``new`` are its two names."""

    old: str | None = None
    new: str | None = None


def in_order(finding: Finding) -> tuple[str, str, str]:
    """Return the sort key of a finding: method, then code (spec §8.2)."""
    return finding.method, finding.code, finding.message


F = TypeVar("F", bound=Finding)


@attrs.frozen
class Allowance:
    """Allows findings: ``METHOD:CODE``, ``METHOD`` (any code) or ``*:CODE`` (any method)."""

    entry: str
    method: str
    code: str

    @classmethod
    def parse(cls, entry: str) -> Allowance:
        """Read an entry.

        Raises:
            InvalidArgument: The entry is malformed, or its code is unknown.
        """
        method, colon, code = entry.partition(":")
        if not method or " " in entry or (method == "*" and not code) or (colon and not code):
            wanted = "an entry is METHOD:CODE, METHOD or *:CODE"
            raise InvalidArgument("allow", f"{entry!r} is malformed; {wanted}")
        if code and (code not in SEVERITIES or code == UNUSED_ALLOWANCE):
            known = ", ".join(sorted(set(SEVERITIES) - {UNUSED_ALLOWANCE}))
            raise InvalidArgument("allow", f"{entry!r} has an unknown code; the codes are {known}")
        return cls(entry, method, code)

    def covers(self, finding: Finding) -> bool:
        """Return True if this entry allows the finding."""
        return self.method in ("*", finding.method) and self.code in ("", finding.code)


def read_allowances(text: str) -> Iterator[str]:
    """Yield the entries of an allow-file: one per line, with comments after ``#``."""
    for line in text.splitlines():
        entry = line.partition("#")[0].strip()
        if entry:
            yield entry


class Allowances:
    """The allowances for one command; ``codes`` are the codes that the command knows.

    ``lint`` and ``breaking`` may share a list: each command ignores the other's codes.

    Raises:
        InvalidArgument: An entry is malformed.
    """

    def __init__(self, entries: Collection[str], codes: Collection[str]) -> None:
        if isinstance(entries, str):
            raise InvalidArgument("allow", f"{entries!r} is a single text; pass a list of entries")
        parsed = map(Allowance.parse, dict.fromkeys(entries))
        self._entries = [one for one in parsed if not one.code or one.code in codes]

    def apply(self, findings: Iterable[F]) -> Iterator[F | Finding]:
        """Yield findings that are not allowed, and then a warning for each unused entry."""
        used = set()
        for finding in findings:
            covering = [one for one in self._entries if one.covers(finding)]
            used.update(covering)
            if not covering:
                yield finding
        for one in self._entries:
            if one not in used:
                yield Finding(
                    method=one.method,
                    code=UNUSED_ALLOWANCE,
                    severity=SEVERITIES[UNUSED_ALLOWANCE],
                    message=f"the allowance {one.entry!r} matches no finding; remove it",
                )


_OPTION: Final = "google.longrunning.operation_info"
_EMPTY: Final = full_name(Empty)


def lint(
    descriptor_set: bytes, *, targets: Collection[str] | None = None, allow: Collection[str] = ()
) -> list[Finding]:
    """Find problems in the long-running methods of a ``FileDescriptorSet`` (spec §8.2).

    ``targets`` are the names of the files to lint, by default all files that declare a service;
    other files are only used for their types. The methods of ``google.longrunning.Operations``
    itself are ignored. The entries of ``allow`` remove findings: ``METHOD:CODE``, ``METHOD`` or
    ``*:CODE``. An entry that matches no finding causes the warning ``unused-allowance``.

    Returns:
        The findings, sorted by method, then code.

    Raises:
        InvalidArgument: The bytes are not such a set, a target is not in the set, or an entry of
            ``allow`` is malformed.
    """
    return examine(DescriptorSet(descriptor_set), targets=targets, allow=allow)


def examine(
    files: DescriptorSet, *, targets: Collection[str] | None = None, allow: Collection[str] = ()
) -> list[Finding]:
    """Lint a parsed set; see :func:`lint`."""
    allowances = Allowances(allow, LINT_CODES)
    found = [
        _finding(files, rpc, code, message)
        for rpc in files.rpcs("targets", targets)
        for code, message in _problems(files, rpc)
    ]
    return sorted(allowances.apply(found), key=in_order)


def resolved_info(files: DescriptorSet, rpc: MethodDescriptor) -> OperationInfo | None:
    """Return the full names of a method's types ("" if unresolved); None without operation_info."""
    if not rpc.returns_operation or rpc.info is None:
        return None
    response = resolve(files, rpc, rpc.info.response_type)
    metadata = resolve(files, rpc, rpc.info.metadata_type)
    return OperationInfo(response.resolved, metadata.resolved)


def _finding(files: DescriptorSet, rpc: MethodDescriptor, code: str, message: str) -> Finding:
    line, column = files.place(rpc)
    return Finding(
        method=str(rpc.name),
        code=code,
        severity=SEVERITIES[code],
        message=message,
        file=rpc.file,
        line=line,
        column=column,
    )


def _problems(files: DescriptorSet, rpc: MethodDescriptor) -> Iterator[tuple[str, str]]:
    if not rpc.returns_operation:
        if rpc.info is not None:
            wrong = f"returns {rpc.output}, not {OPERATION}, but has the option {_OPTION}"
            yield "operation-info-not-allowed", f"{wrong}; remove the option or return {OPERATION}"
        return
    if rpc.streaming:
        yield "streaming-response", f"streams {OPERATION}; return a single one for callers to poll"
    if rpc.info is None:
        wrong = f"returns {OPERATION} without the option {_OPTION}"
        yield "missing-operation-info", f"{wrong}; declare its response_type and metadata_type"
        return
    response = resolve(files, rpc, rpc.info.response_type)
    metadata = resolve(files, rpc, rpc.info.metadata_type)
    for field, found in (("response_type", response), ("metadata_type", metadata)):
        if found.problem:
            code = f"{field.replace('_', '-')}-{found.problem}"
            yield code, _unresolved(files, rpc, field, found)
    yield from _conventions(files, rpc, response.resolved, metadata.resolved)


def _unresolved(files: DescriptorSet, rpc: MethodDescriptor, field: str, found: Resolution) -> str:
    if found.problem == MISSING:
        return f"{_OPTION} has no {field}; name a message"
    named = f"{field} {found.written!r}"
    if found.problem == NOT_IMPORTED:
        home = min(files.homes(found.full_name))
        return f"{named} is {found.full_name} in {home}, which is not imported; import this file"
    looked_for = " or ".join(candidates_for(rpc, found.written))
    if found.problem == NOT_QUALIFIED:
        wrong = f"{named} is not a message of its own package in the set"
        missing = f"if {looked_for} is meant, its file is missing from the set"
        return f"{wrong}; if {found.full_name} is meant, write it in full; {missing}"
    return f"{named} is not a message of the set, looked up as {looked_for}"


def _conventions(
    files: DescriptorSet, rpc: MethodDescriptor, response: str, metadata: str
) -> Iterator[tuple[str, str]]:
    verb, noun = rpc.name.standard
    info = OperationInfo("." + response, "." + metadata)
    for code in rpc.name.convention_findings(info):
        if code == "metadata-type-empty":
            yield code, f"metadata_type is {_EMPTY}, which has no fields; name another message"
        elif code == "response-type-empty":
            wrong = f"response_type is {_EMPTY}, to which no field can be added"
            yield code, f"{wrong}; name another message"
        elif verb:
            wanted = f"{noun} or {_EMPTY}" if verb == "Delete" else noun
            yield code, f"response_type is {response}; for {verb} it must be {wanted}"
        elif not files.is_resource(response):
            wanted = f"{rpc.name.name}Response, or a message with the option google.api.resource"
            yield code, f"response_type is {response}; it must be {wanted}"


def operation_infos(descriptor_set: bytes) -> OperationInfoRegistry:
    """Return the long-running methods of a ``FileDescriptorSet``, with the full names of types.

    A method whose types are not both resolved by spec §8.3 is left out; :func:`lro.lint.lint`
    says why.

    Raises:
        InvalidArgument: The bytes are not such a set.
        DeclarationError: Two files declare the same method.
    """
    files = DescriptorSet(descriptor_set)
    registry = OperationInfoRegistry()
    for rpc in files.rpcs("targets", None):
        info = resolved_info(files, rpc)
        if info is not None and info.response_type and info.metadata_type:
            # A leading dot makes the names absolute (spec §8.3(1)).
            absolute = OperationInfo("." + info.response_type, "." + info.metadata_type)
            registry.register(str(rpc.name), absolute)
    return registry
