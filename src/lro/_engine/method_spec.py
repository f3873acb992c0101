"""Methods as a service knows them: their options, message classes, function and metadata."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, TypeAlias

import attrs

from lro._base.arguments import (
    check,
    check_class,
    check_count,
    check_flag,
    check_instance,
    check_plain_function,
    check_span,
    check_text,
)
from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, EncodingError, InvalidArgument, got
from lro._base.status import AnyMessage, Json, type_url
from lro._engine.job import Job, SwallowedError
from lro._engine.limits import DEFAULT_LIMITS, Limits
from lro._engine.retry import Retry
from lro._filters.indexes import Indexes
from lro._messages.registry import Amending, Codec, TypeRegistry
from lro._messages.schema import TIMESTAMP, Kind, Shape, checked_aliases, simple_name
from lro._messages.shapes import is_typed_dict, no_message
from lro._messages.times import datetime_text
from lro._messages.wellknown import Empty, OperationMetadata
from lro._model.method_names import Hint, MethodName, Signature
from lro._model.operation import OperationInfo, Record, State, fits_by_estimate
from lro._model.transcoding import HttpRule, RequestBinding

Around: TypeAlias = Callable[[Job[Any]], contextlib.AbstractContextManager[object]]
"""A function that takes a job and returns the context manager in which the work runs."""


class _Surroundings(contextlib.AbstractContextManager[object]):
    """Wraps a context manager of the application, which must let errors pass."""

    def __init__(self, method: str, within: contextlib.AbstractContextManager[object]) -> None:
        self._method = method
        self._within = within

    def __enter__(self) -> None:
        self._within.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._within.__exit__(kind, error, trace) and error is not None:
            raise SwallowedError(self._method) from error


_NO_SURROUNDINGS: Final = contextlib.nullcontext()
_TIMES: Final = ("create_time", "start_time", "end_time", "expire_time")
_CANCEL_FLAGS: Final = ("cancel_requested", "requested_cancellation")


@attrs.frozen(eq=False, repr=False)
class StandardMetadata(ByFields):
    """The conventional fields of a metadata type: times, and the flag of a cancel request.

    ``times`` maps attributes of a record to the JSON names of the fields. ``cancel_flag`` is the
    JSON name of the flag, if the type has one. ``first`` is an empty message of the type. An
    operation without metadata gets this message when a caller cancels it, so that the flag in the
    message can show the request. ``order`` has the JSON names of all fields as they are declared.
    """

    times: Mapping[str, str]
    cancel_flag: str = ""
    first: AnyMessage | None = None
    order: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, shape: Shape | None, codec: Codec | None = None, type_name: str = ""
    ) -> StandardMetadata:
        """Find the conventional fields in a shape; fields of unexpected types are left out.

        ``first`` is made with the codec, and only if there is a flag and the type allows an empty
        message.
        """
        fields = {field.name: field for field in shape.fields} if shape else {}
        times: dict[str, str] = {
            name: fields[name].json_name
            for name in _TIMES
            if name in fields and fields[name].message_name == TIMESTAMP
        }
        flags = [
            fields[name].json_name
            for name in _CANCEL_FLAGS
            if name in fields and fields[name].kind is Kind.BOOL
        ]
        first = _empty(codec, type_name) if flags and codec is not None else None
        order = tuple(field.json_name for field in fields.values())
        return cls(times, flags[0] if flags else "", first, order)

    def ordered(self, payload: dict[str, Json]) -> dict[str, Json]:
        """Return the fields of a message as they are declared, and then fields that are not."""
        return {name: payload[name] for name in self.order if name in payload} | payload

    def stamp(self, record: Record, codec: Codec | None = None) -> AnyMessage | None:
        """Return the record's metadata, with the record's times and flag added.

        Times that the work has reported are kept. Metadata in binary form are changed only if
        ``codec`` can change messages in this form.
        """
        packed = record.metadata
        if packed is None and record.cancel_requested:
            packed = self.first
        if packed is None:
            return None
        payload = packed.payload
        said = payload if isinstance(payload, dict) else {}
        times: dict[str, Json] = {
            key: datetime_text(moment)
            for name, key in self.times.items()
            if key not in said and (moment := getattr(record, name)) is not None
        }
        marks: dict[str, Json] = {}
        if self.cancel_flag and record.cancel_requested:
            marks[self.cancel_flag] = True
        if isinstance(payload, dict):
            payload = self.ordered({**times, **payload, **marks})
        elif isinstance(payload, bytes) and isinstance(codec, Amending):
            payload = codec.amend(payload, times, marks)
        return packed if payload == packed.payload else AnyMessage(packed.type_url, payload)


def _empty(codec: Codec, type_name: str) -> AnyMessage | None:
    payload: dict[str, Json] | bytes = b"" if isinstance(codec, Amending) else {}
    try:
        codec.load(payload, strict=False)
    except InvalidArgument:  # the class has a required field
        return None
    return AnyMessage(type_url(type_name), payload)


def _listed(paths: Any) -> Any:
    return tuple(paths) if isinstance(paths, list) else paths


_MOST_AT_ONCE: Final = 1_000_000_000  # a number that every database can store


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Options(ByFields):
    """Options of a method.

    ``concurrency``: how many operations may run at once, in all processes on the store together;
    further operations wait. ``time_limit``: how long one attempt may take before the operation ends
    with DEADLINE_EXCEEDED. ``retry``: after which errors the function is called again, see
    :class:`lro.Retry`. ``max_lost``: how often the function is called again after lost workers; a
    further loss ends the operation with ABORTED, reason WORKER_LOST. ``at_most_once``: the function
    is never called again once it has begun, not even by a rerun. Then ``retry`` is not allowed, and
    the first loss of a worker ends the operation with WORKER_LOST. By default, the function is
    called again if its worker is lost or stopped. ``max_attempts``: how many attempts an operation
    may have in total, after errors, losses and stops. After the last attempt, the operation ends
    with its last error, or with ABORTED, reason TOO_MANY_ATTEMPTS. ``priority``: from -100 to 100;
    due work of the highest priority begins first. ``expires``: work that has not begun this long
    after it was due ends with DEADLINE_EXCEEDED, reason EXPIRED. ``concurrency_key``: a function
    that returns a text for a request, such as the name of a customer. ``concurrency`` and ``rate``
    then hold for each key, and the keys take turns. The key ``""`` has no limit. ``rate``: how many
    operations may begin within a time span, in all processes on the store together, such as ``(10,
    timedelta(minutes=1))``. ``exclusive_target``: a function that returns the resource that a
    request needs alone, ``""`` for none (spec §9.5). ``keep_for``: how long a finished record is
    kept (None: as long as the service's ``keep_for``). ``validate``: a function that decides
    whether a request is accepted, before anything is stored. It accepts by returning None or True.
    It refuses by returning False, by raising a ValueError, whose text callers get as
    INVALID_ARGUMENT, or by raising an error of ``lro``, which callers get unchanged. Any other
    result or error is a mistake: callers get INTERNAL, and the result or error is logged.
    ``final_metadata``: a function that makes the last metadata from the present metadata and the
    final state. It may be called more than once, but not for an operation without metadata. If it
    fails, the operation ends with INTERNAL, reason METHOD_FAILED; an operation that ended without
    its function keeps its error and its metadata. ``indexed_paths``: paths of the metadata, such as
    ``"dataset"`` or ``'labels."a.b"'``, by whose values a list finds operations quickly. ``path``,
    ``http_method`` and ``body``: the HTTP call that starts an operation, for proto files and
    ``starts=True``. A method without a ``path`` is not served by ``starts=True``; in proto files
    its path is made from its name (``/v1/images:resize``). A path may have variables
    (``/v1/{parent=projects/*}/images``), which are fields of the request. ``http_method`` is POST,
    PUT, PATCH or DELETE. ``body`` is ``"*"`` for all fields that are not in the path, or the name
    of a field, or empty. All further fields are query parameters. By default, ``body`` is ``"*"``,
    and for DELETE empty. ``parent``: a function that returns the parent of a request's operation,
    such as ``projects/p``, for starts that name no parent. ``aliases``: full names that the method
    had in earlier releases; work that was stored under one of them is work of this method."""

    concurrency: int | None = None
    time_limit: timedelta | None = None
    retry: Retry | None = None
    at_most_once: bool = False
    max_lost: int = 3
    max_attempts: int = 20
    priority: int = 0
    expires: timedelta | None = None
    concurrency_key: Callable[[Any], str] | None = None
    rate: tuple[int, timedelta] | None = None
    exclusive_target: Callable[[Any], str] | None = None
    keep_for: timedelta | None = None
    validate: Callable[[Any], bool | None] | None = None
    final_metadata: Callable[[Any, State], Any] | None = None
    indexed_paths: tuple[str, ...] = attrs.field(default=(), converter=_listed)
    path: str = ""
    http_method: str = "POST"
    body: str | None = None
    parent: Callable[[Any], str] | None = None
    aliases: tuple[str, ...] = attrs.field(default=(), converter=_listed)
    is_limited: bool = attrs.field(init=False, repr=False, eq=False)
    """True if the store must count running or begun operations before work may begin."""
    has_turns: bool = attrs.field(init=False, repr=False, eq=False)
    """True if an option affects the place of work in the queue."""

    def __attrs_post_init__(self) -> None:
        limited = self.concurrency is not None or self.rate is not None
        turns = bool(self.priority) or self.expires is not None or self.concurrency_key is not None
        object.__setattr__(self, "is_limited", limited)  # fast to read at each start
        object.__setattr__(self, "has_turns", turns)
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, most=_MOST_AT_ONCE)
        if self.retry is not None:
            check_instance("retry", self.retry, Retry, "an lro.Retry")
        check_priority(self.priority)
        if self.rate is not None:
            fine = isinstance(self.rate, tuple) and len(self.rate) == 2
            check("rate", self.rate, "a tuple of a number and a timedelta", fine=fine)
            check_count("rate", self.rate[0], most=_MOST_AT_ONCE)
            check_span("rate", self.rate[1])
        check_flag("at_most_once", self.at_most_once)
        check_count("max_lost", self.max_lost)
        check_count("max_attempts", self.max_attempts)
        for name in ("time_limit", "keep_for", "expires"):
            span = getattr(self, name)
            if span is not None:
                check_span(name, span)
        functions = "exclusive_target", "validate", "final_metadata", "parent", "concurrency_key"
        for name in functions:
            function = getattr(self, name)
            if function is not None:
                check_plain_function(name, function)
        if self.at_most_once and self.retry is not None:
            text = "means that the function is never called again once it has begun"
            raise DeclarationError("at_most_once", f"{text}: leave out retry, or at_most_once")
        if self.retry is not None and self.retry.attempts > self.max_attempts:
            text = f"allows {self.retry.attempts} attempts, and max_attempts {self.max_attempts}"
            raise DeclarationError("retry", f"{text}: raise max_attempts")
        paths = self.indexed_paths
        fine = isinstance(paths, tuple) and all(isinstance(path, str) for path in paths)
        check("indexed_paths", paths, "a tuple of paths", fine=fine)
        checked_aliases("", self.aliases, MethodName.parse)
        check_text("path", self.path)
        if self.body is not None:
            check_text("body", self.body)
        check_text("http_method", self.http_method)
        self.rule(self.path or "/v1/any:start")

    def rule(self, path: str) -> HttpRule:
        """Return the HTTP rule of a method with these options at a path.

        Raises:
            DeclarationError: The options and the path make no valid rule.
        """
        return HttpRule.of("path", path, self.http_method, self.body)

    def check_outside(self) -> None:
        """Check that each option has an effect on work that is done outside.

        Raises:
            DeclarationError: An option applies only to methods with a function.
        """
        for name in _OF_CALLS:
            if getattr(self, name) != getattr(_DEFAULTS, name):
                text = "has no effect on work that is done outside: leave it out"
                raise DeclarationError(name, text)


def check_priority(priority: object) -> None:
    """Check a priority.

    Raises:
        DeclarationError: The priority is not a whole number from -100 to 100.
    """
    number = isinstance(priority, int) and not isinstance(priority, bool)
    wanted = "a whole number from -100 to 100"
    check("priority", priority, wanted, fine=number and abs(typing.cast("int", priority)) <= 100)


class MethodKeywords(typing.TypedDict, total=False):
    """The keyword arguments of ``Service.method`` that are fields of :class:`Options`."""

    concurrency: int | None
    time_limit: timedelta | None
    retry: Retry | None
    at_most_once: bool
    max_lost: int
    max_attempts: int
    priority: int
    expires: timedelta | None
    concurrency_key: Callable[[Any], str] | None
    rate: tuple[int, timedelta] | None
    exclusive_target: Callable[[Any], str] | None
    keep_for: timedelta | None
    validate: Callable[[Any], bool | None] | None
    final_metadata: Callable[[Any, State], Any] | None
    indexed_paths: tuple[str, ...] | list[str]
    path: str
    http_method: str
    body: str | None
    parent: Callable[[Any], str] | None
    aliases: tuple[str, ...] | list[str]


_DEFAULTS = Options()
_OF_CALLS = (
    *("concurrency", "time_limit", "retry", "at_most_once", "max_lost", "max_attempts"),
    *("final_metadata", "priority", "expires", "concurrency_key", "rate"),
)


class FinalMetadataFailed(Exception):
    """A method's ``final_metadata`` failed: ``args`` has the method, ``__cause__`` the error."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MethodDefaults(ByFields):
    """The parts of a service that all its methods share."""

    types: TypeRegistry
    keep_for: timedelta
    limits: Limits = DEFAULT_LIMITS
    around: Around | None = None
    indexes: Indexes = attrs.Factory(lambda self: Indexes(self.types), takes_self=True)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MethodSpec(ByFields):
    """A declared method: name, message classes, options, function (None: work done elsewhere)."""

    full_name: str
    info: OperationInfo
    request: type
    response: type
    metadata: type
    function: Callable[..., object] | None
    takes_job: bool
    is_async: bool
    options: Options
    types: TypeRegistry
    standard_metadata: StandardMetadata
    keep_for: timedelta
    indexes: Indexes
    instances: Mapping[type, type]
    """By message class of this method, the Python class of its messages: dict for a TypedDict."""
    limits: Limits = DEFAULT_LIMITS
    around: Around | None = None
    default_metadata: OperationMetadata | None = None
    """The first metadata of a method without a metadata class."""

    @classmethod
    def build(
        cls,
        full_name: str,
        function: Callable[..., object] | None,
        *,
        request: type | None,
        response: type | None,
        metadata: type | None,
        options: Options,
        defaults: MethodDefaults,
    ) -> MethodSpec:
        """Make the specification of a method. Classes that are None come from the annotations.

        Raises:
            DeclarationError: A message class is missing or cannot be registered, the metadata have
                no field at an indexed path, or the request lacks a field that the path or the body
                names.
        """
        name, types = MethodName.parse(full_name), defaults.types
        said = Signature.of(function) if function else Signature()
        if response is None and said.response.annotation is type(None):
            response = Empty
        if metadata is None and said.metadata.annotation is None:
            metadata = OperationMetadata
        roles = {
            "request": (request, said.request),
            "response": (response, said.response),
            "metadata": (metadata, said.metadata),
        }
        classes = [_needed(full_name, role, *given) for role, given in roles.items()]
        found = zip(classes, roles.values(), strict=True)
        names = [_registered(name, message, where, types) for message, (_, where) in found]
        if options.path:
            shape = types.codec(names[0]).shape
            RequestBinding.of(options.rule(options.path), shape, names[0])
        codec = types.codec(names[2])
        for path in options.indexed_paths:
            defaults.indexes.declare(path, names[2], codec.shape)
        return cls(
            full_name=full_name,
            info=OperationInfo(names[1], names[2]),
            request=classes[0],
            response=classes[1],
            metadata=classes[2],
            function=function,
            takes_job=said.takes_job,
            is_async=said.is_async,
            options=options,
            types=types,
            standard_metadata=StandardMetadata.of(codec.shape, codec, names[2]),
            keep_for=defaults.keep_for if options.keep_for is None else options.keep_for,
            indexes=defaults.indexes,
            instances={one: dict if is_typed_dict(one) else one for one in classes},
            limits=defaults.limits,
            around=defaults.around,
            default_metadata=_default_metadata(name) if classes[2] is OperationMetadata else None,
        )

    @property
    def path(self) -> str:
        """The path of the call that starts an operation; by default made from the method's name."""
        return self.options.path or MethodName.parse(self.full_name).path

    @property
    def rule(self) -> HttpRule:
        """The HTTP method, path and body of a call that starts an operation."""
        return self.options.rule(self.path)

    def function_for(self, other: str) -> Callable[..., object]:
        """Return the function, for use in another method, which has the full name ``other``.

        Raises:
            DeclarationError: There is no function: the work is done outside.
        """
        if self.function is None:
            text = f"was given the method {self.full_name}, whose work is done outside: declare it"
            raise DeclarationError(other, text)
        return self.function

    def surroundings(self, job: Job[Any]) -> contextlib.AbstractContextManager[object]:
        """Return the context manager in which the function of this job is called.

        Raises (at its end):
            SwallowedError: The context manager of ``around`` swallowed an error of the function.
        """
        if self.around is None:
            return _NO_SURROUNDINGS
        return _Surroundings(self.full_name, self.around(job))

    def stamp(self, record: Record) -> Record:
        """Return the record with index keys, and its metadata with times and flag (spec §9.6)."""
        standard, packed = self.standard_metadata, record.metadata
        if standard.times or standard.cancel_flag:
            declared = self.info.metadata_type
            kind = None if packed is None else self.types.present_name(packed.type_name)
            if record.cancel_requested if kind is None else kind == declared:
                codec = self.types.codec(declared)
                stamped = standard.stamp(record, codec)
                if self.default_metadata is not None:
                    stamped = self._filled_in(stamped, record)
                record = record.with_metadata(stamped)
        if not self.indexes.declared and record.keys is None:
            return record
        return self.indexes.mark(record)

    def _filled_in(self, metadata: AnyMessage | None, record: Record) -> AnyMessage | None:
        """Add fields that a report may leave out; after a success, the progress is 100 percent.

        Then the text of a report with less than that is no longer true.
        """
        if metadata is None or not isinstance(metadata.payload, dict):
            return metadata
        first = self.first_metadata(record.target)
        assert first is not None  # the method has default metadata
        names = {"verb": first.verb, "apiVersion": first.api_version, "target": first.target}
        added: dict[str, Json] = {
            name: text for name, text in names.items() if text and name not in metadata.payload
        }
        kept = metadata.payload
        if record.state is State.SUCCEEDED:  # even if the last report has another number
            added["progressPercent"] = 100
            if kept.get("progressPercent", 100) != 100:
                kept = {name: value for name, value in kept.items() if name != "statusMessage"}
        if not added:
            return metadata
        return AnyMessage(metadata.type_url, self.standard_metadata.ordered({**kept, **added}))

    def pack_response(self, returned: object) -> AnyMessage:
        """Pack the function's response, unless it is packed; None stands for Empty.

        Raises:
            EncodingError: The response is of another class, or cannot be encoded.
            MessageTooLarge: The response has more bytes than the service keeps.
        """
        if returned is None and self.response is Empty:
            returned = Empty()
        if isinstance(returned, AnyMessage) and returned.type_name == self.info.response_type:
            packed = returned
        else:
            packed = self._pack(returned, self.response, self.info.response_type)
        if not fits_by_estimate(packed, self.limits.response_bytes):
            self.limits.check_result(packed)
        return packed

    def first_metadata(self, target: str) -> OperationMetadata | None:
        """Return the metadata before the first report, if the method has no metadata class."""
        if self.default_metadata is None or not target:
            return self.default_metadata
        return attrs.evolve(self.default_metadata, target=target)

    def unpack_metadata(self, packed: AnyMessage | None) -> Any:
        """Return the metadata as a message; None for no metadata, or metadata of an old class."""
        if packed is None:
            return None
        try:
            return self.types.unpack(packed, self.metadata)
        except InvalidArgument:
            return None

    def pack_metadata(self, reported: object) -> AnyMessage:
        """Pack the metadata that the function reported.

        Raises:
            EncodingError: The metadata are of another class, or cannot be encoded.
            MessageTooLarge: The metadata have more bytes than the service keeps.
        """
        packed = self._pack(reported, self.metadata, self.info.metadata_type)
        if fits_by_estimate(packed, self.limits.metadata_bytes):  # true of most metadata
            return packed
        return self.limits.check_metadata(packed)

    def _pack(self, message: object, cls: type, type_name: str) -> AnyMessage:
        if not isinstance(message, self.instances[cls]):
            wanted = f"must be a {cls.__name__}, got {got(message)}"
            if cls is self.metadata and isinstance(message, OperationMetadata):
                job = f"this method has Job[{cls.__name__}]"
                wanted = f"{job}: call job.report(...) instead of job.progress(...)"
            raise EncodingError(type_name, "", wanted)
        return self.types.pack(message, cls)

    def final_metadata(self, metadata: AnyMessage | None, state: State) -> AnyMessage | None:
        """Return the last metadata of an operation that ends in this state.

        Metadata of an older class stay as they are: they come from an earlier release.

        Raises:
            FinalMetadataFailed: The method's ``final_metadata`` failed, or returned metadata that
                cannot be packed.
        """
        function = self.options.final_metadata
        if function is None or metadata is None:
            return metadata
        try:
            last = self.unpack_metadata(metadata)
            return metadata if last is None else self.pack_metadata(function(last, state))
        except BaseException as exc:  # application code: other work still needs this thread
            raise FinalMetadataFailed(self.full_name) from exc


def _default_metadata(method: MethodName) -> OperationMetadata:
    return OperationMetadata(verb=method.verb, api_version=method.version)


def _needed(method: str, role: str, given: type | None, said: Hint) -> type:
    if given is not None:
        check_class(role, given, "a message class")
        return given
    annotation = said.annotation
    if annotation is type(None):
        more = ", or leave it out for lro.OperationMetadata" if role == "metadata" else ""
        wanted = f"annotate lro.Empty instead{more}"
        raise DeclarationError(method, f"has None annotated as its {role} class: {wanted}")
    if annotation is None:
        code = "" if role == "request" else f" ({role}-type-missing)"
        how = " (None for none)" if role == "response" else ""
        wanted = f"annotate it{how}, or give {role}={code}"
        raise DeclarationError(method, f"has no {role} class: {wanted}")
    if not isinstance(annotation, type):
        why = f"{said.where} is annotated {annotation}, which {no_message(annotation)}"
        raise DeclarationError(method, why)
    return annotation


def _registered(method: MethodName, message: type, said: Hint, types: TypeRegistry) -> str:
    # A class without a name of its own belongs to the method's package (spec §8.3).
    known = types.knows(message)
    name = types.name_of(message) if known else method.qualify(simple_name(message))
    try:
        return types.register(message, name)
    except DeclarationError as exc:
        if message is not said.annotation:
            raise
        raise DeclarationError(str(method), f"{said.where}: {exc}") from exc
