"""The methods of a service: how they are declared, and the object that starts operations."""

from __future__ import annotations

import logging
import typing
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar, Unpack, overload

from lro._base.arguments import check_keywords, meant
from lro._base.errors import DeclarationError, InvalidArgument, LroError, OperationNotFound, got
from lro._engine.access import Caller, caller_given
from lro._engine.flow import Flow, blocking, flow_of, on_loop, run, run_all
from lro._engine.handle import Handle, HandleCalls
from lro._engine.job import Job, job_alone
from lro._engine.method_spec import MethodDefaults, MethodSpec, Options
from lro._engine.reporter import LateReporter, Reporter
from lro._engine.runtime import Runtime
from lro._engine.starting import Starter, StartKeywords, StartManyKeywords, StartSettings
from lro._filters.indexes import Indexes
from lro._messages.schema import checked_aliases
from lro._messages.wellknown import Empty
from lro._model.method_names import FINDINGS, MethodName, OperationInfoRegistry
from lro._model.operation import Operation, OperationInfo, check_name

log = logging.getLogger("lro")

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")


class Methods:
    """The methods that a service declares, by full name."""

    def __init__(self, runtime: Runtime, defaults: MethodDefaults) -> None:
        self.infos: OperationInfoRegistry = OperationInfoRegistry()
        self.indexes: Indexes = defaults.indexes
        self.specs: dict[str, MethodSpec] = {}
        self.by_stored_name: dict[str, MethodSpec] = {}
        """Methods by full name and by alias: work may be stored under either name."""
        self._runtime = runtime
        self._defaults = defaults

    def register(
        self,
        full_name: str,
        function: Callable[..., object] | None,
        options: Options,
        *,
        request: type | None,
        response: type | None,
        metadata: type | None,
    ) -> MethodSpec:
        """Declare a method: check it, make its indexes in the store, and register it.

        Raises:
            DeclarationError: The declaration of the method or a message class is not valid.
            Unavailable: An index has to be made, and the store cannot be reached.
        """
        if isinstance(function, Method):  # maybe of another service
            known = function.spec
            function = known.function_for(full_name)
            request = request or known.request
            response, metadata = response or known.response, metadata or known.metadata
        self._check_names(full_name, options.aliases)
        spec = MethodSpec.build(
            full_name,
            function,
            request=request,
            response=response,
            metadata=metadata,
            options=options,
            defaults=self._defaults,
        )
        if options.indexed_paths:
            self.make_indexes()
        if function is not None:
            self._runtime.executor.check_method(spec)
        info = OperationInfo("." + spec.info.response_type, "." + spec.info.metadata_type)
        for finding in self.infos.register(full_name, info):
            means = FINDINGS[finding].replace("<Method>", full_name.rpartition(".")[2])
            log.info("%s: %s: %s (AIP-151)", full_name, finding, means)
        self.specs[full_name] = spec
        self._runtime.events.renamed.update(dict.fromkeys(options.aliases, full_name))
        self.by_stored_name.update(dict.fromkeys((full_name, *options.aliases), spec))
        return spec

    def _check_names(self, full_name: str, aliases: Sequence[str]) -> None:
        MethodName.parse(full_name)
        if full_name not in self.specs and full_name in self.by_stored_name:
            other = self.by_stored_name[full_name].full_name
            text = f"is an alias of {other}: take it out of the aliases there"
            raise DeclarationError(full_name, f"{text}, or declare one of the two methods only")
        checked_aliases(full_name, aliases, MethodName.parse)
        for alias in aliases:
            if alias in self.specs:
                text = f"is declared as a method, so it cannot be an alias of {full_name}"
                raise DeclarationError(
                    alias, f"{text}: leave it out, or do not declare that method"
                )
            if alias in self.by_stored_name:
                other = self.by_stored_name[alias].full_name
                text = f"is an alias of {other} already, so it cannot be one of {full_name}"
                raise DeclarationError(alias, f"{text}: give it to one of them")

    def index_callers(self) -> None:
        """Make the index by which the store finds operations of a caller."""
        self.indexes.declare_caller()
        self.make_indexes()

    def make_indexes(self) -> None:
        """Make the indexes that the methods declare."""
        self._runtime.store.index(self.indexes.keys)

    def spec(self, full_name: str) -> MethodSpec:
        """Return the declaration of a method.

        Raises:
            DeclarationError: No such method is declared.
        """
        if full_name not in self.specs:
            raise DeclarationError(full_name, "is not declared by this service")
        return self.specs[full_name]

    def check_own(self, spec: MethodSpec) -> None:
        """Check that a method belongs to this service.

        Raises:
            DeclarationError: Another service declares it, maybe under the same name.
        """
        if self.specs.get(spec.full_name) is not spec:
            raise DeclarationError(spec.full_name, "is not declared by this service")

    def reporter(self, name: str) -> Reporter:
        """See ``Service.reporter``."""
        runtime, cls = self._runtime, Reporter
        try:
            method = runtime.store.get(name).method
        except OperationNotFound:
            method, cls = next(iter(self.specs), ""), LateReporter
        spec = self.by_stored_name.get(method) or self.spec(method)
        return cls(name, runtime.updater, spec, runtime.domain)


class Method(Generic[Req, Resp, Meta]):
    """A method that returns an operation, made by ``Service.method`` or ``Service.declare``."""

    def __init__(self, spec: MethodSpec, starter: Starter, calls: HandleCalls) -> None:
        self.spec = spec
        self._starter = starter
        self._calls = calls

    if not typing.TYPE_CHECKING:  # type checkers would then accept any attribute

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"Method has no attribute {name!r}{meant(name, dir(Method))}")

    @property
    def full_name(self) -> str:
        """``package.Service.Method``."""
        return self.spec.full_name

    def __call__(self, request: Req, job: Job[Meta] | None = None) -> Resp:
        """Call the function, for a test: nothing is stored, started or validated.

        ``job`` receives the function's reports, see :func:`lro.testing.job`. By default, the
        reports are lost.

        Raises:
            TypeError: The method has no function, or its function is async: use :meth:`call_async`.
        """
        if self.spec.is_async:
            raise TypeError(f"{self.full_name} is async: use `await method.call_async(...)`")
        return typing.cast(Resp, self._returned(self._called(request, job)))

    async def call_async(self, request: Req, job: Job[Meta] | None = None) -> Resp:
        """Call the function, async or not, for a test: see :meth:`__call__`.

        Raises:
            TypeError: The method has no function.
        """
        found = self._called(request, job)
        return typing.cast(Resp, self._returned(await found if self.spec.is_async else found))

    def _called(self, request: Req, job: Job[Meta] | None) -> Any:
        spec = self.spec
        if spec.function is None:
            raise TypeError(f"{self.full_name} has no function: its work is done outside")
        if not spec.takes_job:
            return spec.function(request)
        if job is None:
            job = job_alone(spec.types, spec.limits, metadata=spec.first_metadata(""))
        return spec.function(request, job)

    def _returned(self, found: object) -> object:
        return Empty() if found is None and self.spec.response is Empty else found

    def start(self, request: Req, **options: Unpack[StartKeywords[Meta]]) -> Handle[Resp, Meta]:
        """Store a new operation, have its work begun, and return its handle at once.

        ``request_id``: a text of at most 128 characters, such as your own key for the work,
        that makes a repeated start harmless for 24 hours (spec §9.1).
        ``parent``: the resource that the operation belongs to, such as ``projects/p``. ``target``:
        a resource that the work needs alone. By default, parent and target come from the method's
        options. ``metadata``: the metadata before the first report. ``caller``: the name of
        the caller who starts the operation, a text or a whole number; None is refused.
        ``validate_only``: check everything, start nothing; the handle then has no name.

        ``within``: a connection or session of the application, of psycopg, sqlite3, Django or
        SQLAlchemy, to the database of the store. The start is then part of the connection's
        transaction: no one else sees the operation before the commit, the work begins after the
        commit, and after a rollback the operation never existed.

        ``notify``: endpoints that are notified of the end of this operation, besides the endpoints
        of the service's ``webhooks``. If a start is repeated, the endpoints of the first start are
        notified.

        ``delay``, a timedelta, or ``at``, a datetime with a time zone: when the work is due; by
        default now. Until then, the work waits in the store. ``priority`` and ``expires`` replace
        the method's options of these names.

        Raises:
            InvalidArgument: The request is refused, or the request id is malformed or belongs to
                another request. Or ``notify`` is refused, as always by a service without webhooks.
                Or ``within`` is of an unsupported kind, belongs to another database, or has no open
                transaction. Or the store cannot take part in transactions.
            TargetBusy: Another operation works on the target.
            ResourceExhausted: Too many operations wait already (``Limits.backlog``).
            Unavailable: The store or executor cannot be reached, or the service is stopping.
            PermissionDenied: The ``authorize`` hook refuses the call.
            HookFailed: The ``authorize`` hook, or ``validate``, gives no valid answer.
            TypeError: There is no such argument.
        """
        return self._handle(run(self._starter.start(self.spec, request, StartSettings.of(options))))

    async def start_async(
        self, request: Req, **options: Unpack[StartKeywords[Meta]]
    ) -> Handle[Resp, Meta]:
        """:meth:`start` for coroutines: no thread waits for the store.

        ``within`` must not be an asynchronous connection, and its statements block the event loop.

        If the task that awaits the start is cancelled, the operation may have been started: a
        record that was handed to the store by then is stored, and its work is done.
        """
        flow = self._starter.start(self.spec, request, StartSettings.of(options))
        return self._handle(await on_loop(flow))

    @blocking
    def handle(self, name: str, *, caller: Caller = "") -> Flow[Handle[Resp, Meta]]:
        """Return the handle of an operation of this method that the caller can see.

        ``caller`` is as for ``Service.get``. This call asks ``authorize`` about GetOperation; the
        calls of the handle ask no hook.

        Raises:
            InvalidOperationName: The name is malformed.
            InvalidArgument: The caller is None.
            OperationNotFound: The operation does not exist, another method started it, or it
                belongs to another caller.
            PermissionDenied: The ``authorize`` hook refuses the call.
            HookFailed: The ``authorize`` hook gives no valid answer.
            Unavailable: The store cannot be reached.
        """
        self._calls.begin_here()
        check_name(name)
        by, access = caller_given(caller), self._calls.access
        yield from access.permit(by, "GetOperation", name)
        record = yield from access.visible_record(name, by)
        if record.method not in (self.full_name, *self.spec.options.aliases):
            raise OperationNotFound(name)
        return self._handle(record.operation)

    async def handle_async(self, name: str, *, caller: Caller = "") -> Handle[Resp, Meta]:
        """:meth:`handle` for coroutines."""
        return await on_loop(flow_of(self.handle)(name, caller=caller))

    def start_many(
        self,
        requests: Sequence[Req],
        *,
        request_ids: Sequence[str] = (),
        **options: Unpack[StartManyKeywords],
    ) -> Sequence[Handle[Resp, Meta] | LroError]:
        """Start an operation for each of these requests; they are stored together.

        ``parent``, ``caller``, ``delay``, ``at``, ``priority`` and ``expires`` apply to each start.

        Returns:
            For each request, the handle that :meth:`start` would return, or the error that it would
            raise: if one start is refused, the other operations are started all the same.

        Raises:
            InvalidArgument: There are request ids, but not one for each request; or an argument is
                not a list or tuple.
            TypeError: There is no such argument.
        """
        return self._handles(run_all(self._flows(requests, request_ids, options)))

    async def start_many_async(
        self,
        requests: Sequence[Req],
        *,
        request_ids: Sequence[str] = (),
        **options: Unpack[StartManyKeywords],
    ) -> Sequence[Handle[Resp, Meta] | LroError]:
        """:meth:`start_many` for coroutines."""
        import asyncio

        flows = map(on_loop, self._flows(requests, request_ids, options))
        return self._handles(await asyncio.gather(*flows, return_exceptions=True))

    def _flows(
        self, requests: Sequence[Req], request_ids: Sequence[str], options: StartManyKeywords
    ) -> Sequence[Flow[Operation]]:
        check_keywords("start_many", options, StartManyKeywords)
        for name, given in (("requests", requests), ("request_ids", request_ids)):
            if not isinstance(given, list | tuple):
                raise InvalidArgument(name, f"must be a list or a tuple, got {got(given)}")
        if request_ids and len(request_ids) != len(requests):
            wanted = f"one for each of the {len(requests)} requests, got {len(request_ids)}"
            raise InvalidArgument("request_ids", f"must be {wanted}")
        ids = request_ids or [""] * len(requests)
        each: Any = options
        return [
            self._starter.start(self.spec, request, StartSettings(**each, request_id=one))
            for request, one in zip(requests, ids, strict=True)
        ]

    def _handles(
        self, found: Sequence[Operation | BaseException]
    ) -> Sequence[Handle[Resp, Meta] | LroError]:
        """Return handles, and the errors of starts that were refused.

        Raises:
            BaseException: An error that is not the service's own, such as one of a hook.
        """
        answers: list[Handle[Resp, Meta] | LroError] = []
        for one in found:
            if isinstance(one, Operation):
                answers.append(self._handle(one))
            elif isinstance(one, LroError):
                answers.append(one)
            else:
                raise one
        return answers

    def _handle(self, operation: Operation) -> Handle[Resp, Meta]:
        return Handle(operation, self.spec, self._calls)


class MethodDecorator(Protocol):
    """Turns a function into a :class:`Method` of the classes in its annotations."""

    @overload
    def __call__(
        self, function: Callable[[Req, Job[Meta]], Coroutine[Any, Any, None]]
    ) -> Method[Req, Empty, Meta]: ...
    @overload
    def __call__(self, function: Callable[[Req, Job[Meta]], None]) -> Method[Req, Empty, Meta]: ...
    @overload
    def __call__(
        self, function: Callable[[Req], Coroutine[Any, Any, None]]
    ) -> Method[Req, Empty, Any]: ...
    @overload
    def __call__(self, function: Callable[[Req], None]) -> Method[Req, Empty, Any]: ...
    @overload
    def __call__(
        self, function: Callable[[Req, Job[Meta]], Coroutine[Any, Any, Resp]]
    ) -> Method[Req, Resp, Meta]: ...
    @overload
    def __call__(self, function: Callable[[Req, Job[Meta]], Resp]) -> Method[Req, Resp, Meta]: ...
    @overload
    def __call__(
        self, function: Callable[[Req], Coroutine[Any, Any, Resp]]
    ) -> Method[Req, Resp, Any]: ...
    @overload
    def __call__(self, function: Callable[[Req], Resp]) -> Method[Req, Resp, Any]: ...
