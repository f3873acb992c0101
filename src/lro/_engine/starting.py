"""Starting an operation: check, reserve, store, submit, in this order (spec §9)."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final

from lro._base.any import Any
from lro._base.arguments import contained
from lro._base.errors import (
    EncodingError,
    InvalidArgument,
    InvalidParent,
    InvalidRequestId,
    MessageTooLarge,
    ResourceExhausted,
    Unavailable,
    got,
)
from lro._engine.access import Access
from lro._engine.attempt import Attempt
from lro._engine.hooks import Flow, ask_validity
from lro._engine.maintenance import Background
from lro._engine.method_spec import MethodSpec
from lro._engine.runtime import Runtime, stopping
from lro._engine.store_port import RequestKey
from lro._messages.wellknown import Empty
from lro._model.names import join_name, new_id, normalise_parent
from lro._model.operation import Operation
from lro._model.record import Record
from lro._model.transitions import release

log = logging.getLogger("lro")

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NIL: Final = "00000000-0000-0000-0000-000000000000"


class Starter:
    """Starts operations: a sequence that begins the maintenance of the process with the first."""

    def __init__(self, runtime: Runtime, background: Background, access: Access) -> None:
        self._runtime = runtime
        self._background = background
        self._workers = background.workers
        self._access = access

    def start(
        self,
        spec: MethodSpec,
        request: object,
        *,
        request_id: str,
        parent: str,
        metadata: object | None,
        target: str,
        caller: str,
        validate_only: bool,
    ) -> Flow[Operation]:
        """See ``Method.start``."""
        self._background.start()
        if self._workers.stopping:
            raise stopping()
        _check_text("request_id", request_id)
        _check_text("target", target)
        _check_text("caller", caller)
        if not isinstance(validate_only, bool):
            wanted = f"must be True or False, got {got(validate_only)}"
            raise InvalidArgument("validate_only", wanted)
        if not isinstance(request, spec.request):
            wanted = f"must be a {spec.request.__name__}, got {got(request)}"
            raise InvalidArgument("request", wanted)
        if spec.options.validate is not None:
            ask_validity(spec.options.validate, request)
        if not target and spec.options.exclusive_target is not None:
            target = contained("exclusive_target", spec.options.exclusive_target, request)
            _check_text("target", target)
        try:
            parent = normalise_parent(parent)
        except InvalidParent as exc:  # List calls it name
            raise InvalidParent("parent", exc.description) from None
        packed = _packed(spec, request)
        key = _request_key(spec, caller, request_id, parent, packed)
        record = self._record(spec, parent, metadata, target, caller, key)
        yield from self._access.permit(caller, spec.full_name, parent)
        if validate_only:
            self._runtime.store.insert(record, packed, key, check_only=True)
            return Operation(done=True, result=spec.types.pack(Empty()))
        if spec.function is None:
            return self._runtime.store.insert(record, packed, key).record.operation
        return self._insert_and_run(spec, record, request, packed, key)

    def _record(
        self,
        spec: MethodSpec,
        parent: str,
        metadata: object | None,
        target: str,
        caller: str,
        key: RequestKey | None,
    ) -> Record:
        if metadata is not None and not isinstance(metadata, (spec.metadata, Any)):
            wanted = f"must be a {spec.metadata.__name__}, got {got(metadata)}"
            raise InvalidArgument("metadata", wanted)
        now = self._runtime.store.now()
        owner, span = self._first_lease(spec)
        record = Record(
            name=_prefix(parent) + new_id(secrets.token_bytes, now),
            parent=parent,
            method=spec.full_name,
            metadata=None if metadata is None else _first_metadata(spec, metadata),
            create_time=now,
            update_time=now,
            owner=owner,
            lease_until=None if span is None else now + span,
            caller=caller,
            request_id=key.request_id if key else "",
            target=target,
        )
        return spec.stamp(record)

    def _first_lease(self, spec: MethodSpec) -> tuple[str, timedelta | None]:
        if spec.function is None:
            return "", None
        redelivery = self._runtime.executor.redelivery
        return (
            (self._workers.owner, self._runtime.lease) if redelivery is None else ("", redelivery)
        )

    def _insert_and_run(
        self,
        spec: MethodSpec,
        record: Record,
        request: object,
        packed: Any,
        key: RequestKey | None,
    ) -> Operation:
        store = self._runtime.store
        try:
            slot = self._runtime.executor.reserve()
        except (ResourceExhausted, Unavailable):
            # A repeated start needs no room: it gets the operation that it has started before.
            known = store.insert(record, packed, key, check_only=True)
            if known.fresh or self._waits(known.record):
                raise
            return known.record.operation
        at_once = slot.worker_idle and spec.options.concurrency is None
        if at_once:
            record = _begun(record, spec)
        with self._workers.starting(spec, record, request, begun=at_once) as run:
            try:
                inserted = store.insert(record, packed, key)
            except BaseException:
                slot.release()
                raise
            if not inserted.fresh and not self._waits(inserted.record):
                run.revoke()
                slot.release()
                return inserted.record.operation
            run.name = inserted.record.name  # of the first start, where that is sent once more
            try:
                ended = self._workers.begin(run, slot)
            except BaseException as exc:
                return self._refused(inserted.record, run, key, exc)
        # Over already: the inline executor, or very quick work (spec §9.8).
        return (ended or inserted.record).operation

    def _refused(
        self,
        record: Record,
        run: Attempt,
        key: RequestKey | None,
        error: BaseException,
    ) -> Operation:
        """Return the operation whose work the executor has refused, where the start succeeds.

        Without a request id, no other call has returned the operation: it is forgotten, and the
        start fails. With one, another call may have been, so that the operation has to stay:
        it is handed back if that may help, else it ends. A name that is sent is sent again anyway.

        Raises:
            BaseException: The ``error``, where the start fails.
        """
        store = self._runtime.store
        if not run.revoke():  # it was taken, and then this thread was interrupted
            raise error
        passing = isinstance(error, (Unavailable, ResourceExhausted))
        if passing and self._workers.stopping:  # the next process does it
            self._runtime.updater.apply(record.name, release(record.attempt, store.now()))
            return record.operation
        if key is None:
            store.forget(run.name)
            raise error
        if self._runtime.executor.redelivery is not None or not isinstance(error, Exception):
            raise error
        if passing:  # maintenance hands it back: see Workers.release_not_started
            return record.operation
        log.error("%s: the executor has failed to take it", run.name, exc_info=error)
        return run.end_refused(record).operation

    def _waits(self, record: Record) -> bool:
        # Whether a repeated start is to send the name once more: the first one may have failed.
        remote = self._runtime.executor.redelivery is not None
        return remote and not record.done and record.unclaimed


def _begun(record: Record, spec: MethodSpec) -> Record:
    # As a claim that follows at once would leave it, for one write less.
    begun = record.next_version(attempt=1, start_time=record.create_time)
    return spec.stamp(begun)


@functools.lru_cache(maxsize=256)
def _prefix(parent: str) -> str:
    # Whether a name is well-formed depends on its parent alone: new ids are all alike.
    probe = new_id(bytes, datetime.max.replace(tzinfo=UTC))
    return join_name(parent, probe).removesuffix(probe)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(name, f"must be a text, got {got(value)}")


def _packed(spec: MethodSpec, request: object) -> Any:
    try:
        return spec.types.pack(request)
    except EncodingError as exc:
        path = f"request.{exc.path}" if exc.path else "request"
        raise InvalidArgument(path, exc.description) from None


def _first_metadata(spec: MethodSpec, metadata: object) -> Any:
    packed = spec.types.pack(metadata)
    try:
        return spec.limits.check_metadata(packed)
    except MessageTooLarge as exc:  # it is mostly made of the request
        raise InvalidArgument("metadata", exc.description) from None


def _request_key(
    spec: MethodSpec, caller: str, request_id: str, parent: str, packed: Any
) -> RequestKey | None:
    if not request_id:
        return None
    text = request_id.lower()
    if not _UUID.fullmatch(text) or text == _NIL:
        wanted = "must be a UUID of 36 characters, not all zero"
        raise InvalidRequestId("request_id", f"{wanted}, got {got(request_id)}")
    payload = packed.payload
    if not isinstance(payload, bytes):
        payload = json.dumps(payload, sort_keys=True).encode()
    digest = hashlib.sha256(f"{len(parent)}:{parent}".encode() + payload)
    return RequestKey(spec.full_name, caller, text, digest.hexdigest())
