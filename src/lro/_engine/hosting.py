"""Declaring methods, and starting their operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from lro._base.arguments import check_instance, check_text
from lro._base.errors import DeclarationError, OperationNotFound
from lro._engine.executor_port import Executor
from lro._engine.hooks import Flow, flow_of, verb
from lro._engine.limits import Limits
from lro._engine.method import Method, MethodDecorator, Reporter
from lro._engine.method_spec import MethodSpec, Options, WorkerLost
from lro._engine.record_updater import RecordUpdater
from lro._engine.starting import Starter
from lro._filters.indexes import Indexes
from lro._messages.registry import TypeRegistry
from lro._model.method_names import FINDINGS, MethodName, OperationInfoRegistry
from lro._model.names import parse_name
from lro._model.operation import Operation, OperationInfo
from lro._model.record import State

log = logging.getLogger("lro")

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")


class MethodHost:
    """The half of a service that knows its methods."""

    def __init__(
        self,
        *,
        updater: RecordUpdater,
        executor: Executor,
        starter: Starter,
        types: TypeRegistry,
        expiry: timedelta,
        declared: Callable[[], None],
        limits: Limits,
    ) -> None:
        self.types = types
        self.methods = OperationInfoRegistry()
        self.indexes = Indexes(types)
        self._updater = updater
        self._executor = executor
        self._starter = starter
        self._expiry = expiry
        self._declared = declared
        self.limits = limits
        self._specs: dict[str, MethodSpec] = {}

    @property
    def specs(self) -> Mapping[str, MethodSpec]:
        """What is declared of each method, by full name."""
        return self._specs

    def method(
        self,
        full_name: str,
        *,
        request: type | None = None,
        response: type | None = None,
        metadata: type | None = None,
        concurrency: int | None = None,
        time_limit: timedelta | None = None,
        attempts: int | None = None,
        retry_on: tuple[type[Exception], ...] = (),
        worker_lost: WorkerLost = WorkerLost.FAIL,
        max_lost: int = 3,
        target: Callable[[Any], str] | None = None,
        expiry: timedelta | None = None,
        validate: Callable[[Any], bool | None] | None = None,
        settle: Callable[[Any, State], Any] | None = None,
        index: tuple[str, ...] | list[str] = (),
        path: str = "",
    ) -> MethodDecorator:
        """Decorate a function: calls of it become operations.

        The message classes come from the annotations ``def f(request: R, job: Job[M]) -> S``
        unless given. The options are those of :class:`lro.Options`.

        Raises:
            DeclarationError: The method or a message class cannot be declared so.
            Unavailable: There is an ``index`` to be made, and the store cannot be reached.
        """
        MethodName.parse(full_name)
        options = Options(
            concurrency=concurrency,
            time_limit=time_limit,
            attempts=attempts,
            retry_on=retry_on,
            worker_lost=worker_lost,
            max_lost=max_lost,
            target=target,
            expiry=expiry,
            validate=validate,
            settle=settle,
            index=index,
            path=path,
        )

        def decorate(function: Callable[..., object]) -> Method[Any, Any, Any]:
            return self._register(
                full_name, function, options, request=request, response=response, metadata=metadata
            )

        return decorate

    def declare(
        self,
        full_name: str,
        *,
        request: type[Req],
        response: type[Resp],
        metadata: type[Meta],
        options: Options | None = None,
    ) -> Method[Req, Resp, Meta]:
        """Declare a method whose work is done outside: it reports through :meth:`reporter`.

        Raises:
            DeclarationError: The method or a message class cannot be declared so.
            Unavailable: There is an ``index`` to be made, and the store cannot be reached.
        """
        if options is not None:
            check_instance("options", options, Options, "lro.Options")
        return self._register(
            full_name,
            None,
            options or Options(),
            request=request,
            response=response,
            metadata=metadata,
        )

    def check_own(self, method: Method[Any, Any, Any]) -> None:
        """Do nothing for a method of this service; edges check the methods that they start.

        Raises:
            DeclarationError: Another service declares it, maybe under the same name: calls would
                reach that service, whose callers this one's edges do not check.
        """
        if self._specs.get(method.full_name) is not method.spec:
            raise DeclarationError(method.full_name, "is not declared by this service")

    @verb
    def start(self, full_name: str, request: object, **options: Any) -> Flow[Operation]:
        """Start an operation of the method of this name; the rest as for ``Method.start``.

        Raises:
            DeclarationError: No such method is declared.
        """
        check_text("full_name", full_name)
        if full_name not in self._specs:
            raise DeclarationError(full_name, "is not declared by this service")
        method: Method[object, object, object] = Method(self._specs[full_name], self._starter)
        return (yield from flow_of(method.start)(request, **options))

    def reporter(self, name: str) -> Reporter:
        """The worker's side of an operation of a declared method.

        Raises:
            InvalidOperationName: The name is malformed.
            DeclarationError: The operation belongs to a method that this service does not know.
        """
        parse_name(name)
        try:
            method = self._updater.store.get(name).method
        except OperationNotFound:
            method = next(iter(self._specs), "")
        if method not in self._specs:
            raise DeclarationError(method, "is not declared by this service")
        return Reporter(name, self._updater, self._specs[method])

    def _register(
        self,
        full_name: str,
        function: Callable[..., object] | None,
        options: Options,
        *,
        request: type | None,
        response: type | None,
        metadata: type | None,
    ) -> Method[Any, Any, Any]:
        spec = MethodSpec.build(
            full_name,
            function,
            request=request,
            response=response,
            metadata=metadata,
            options=options,
            types=self.types,
            expiry=self._expiry,
            indexes=self.indexes,
            limits=self.limits,
        )
        if options.index:
            self._make_indexes()
        if function is not None:
            self._executor.admit(spec)
        info = OperationInfo("." + spec.info.response_type, "." + spec.info.metadata_type)
        for finding in self.methods.register(full_name, info):
            log.info("%s: %s: %s (AIP-151)", full_name, finding, FINDINGS[finding])
        self._specs[full_name] = spec
        if function is not None:
            self._declared()
        return Method(spec, self._starter)

    def _make_indexes(self) -> None:
        self._updater.store.index(self.indexes.keys)
