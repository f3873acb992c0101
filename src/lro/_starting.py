"""Starting an operation: check, reserve, store, submit, in this order (spec §9)."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from lro._any import Any
from lro._errors import (
    InvalidArgument,
    InvalidParent,
    InvalidRequestId,
    OperationNotFound,
    ResourceExhausted,
    Unavailable,
)
from lro._faults import EncodingError
from lro._ledger import Ledger
from lro._names import join_name, new_id, normalise_parent
from lro._operation import Operation
from lro._ports import Executor, RequestKey, Slot
from lro._record import Record
from lro._scalars import got
from lro._spec import MethodSpec
from lro._states import release, take_over
from lro._wellknown import Empty
from lro._worker import Run

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NIL: Final = "00000000-0000-0000-0000-000000000000"


class Starter:
    """Starts operations, and knows the work that this process holds."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        executor: Executor,
        owner: str,
        lease: timedelta,
        domain: str,
        nudge: Callable[[], None],
        authorize: Callable[[str, str, str], None],
    ) -> None:
        self._ledger = ledger
        self._executor = executor
        self._owner = owner
        self._lease = lease
        self.domain = domain
        self._nudge = nudge
        self._authorize = authorize
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._stopping = False

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
    ) -> Operation:
        """See ``Method.start``."""
        if self._stopping:
            raise Unavailable("the service is stopping")
        if not isinstance(request, spec.request):
            wanted = f"must be a {spec.request.__name__}, got {got(request)}"
            raise InvalidArgument("request", wanted)
        if spec.options.validate is not None:
            spec.options.validate(request)
        if not target and spec.options.target is not None:
            target = spec.options.target(request)
        try:
            parent = normalise_parent(parent)
        except InvalidParent as exc:  # List calls it name
            raise InvalidParent("parent", exc.description) from None
        packed = _packed(spec, request)
        key = _request_key(spec, caller, request_id, parent, packed)
        record = self._record(spec, parent, metadata, target, caller, key)
        self._authorize(caller, spec.full_name, parent)
        if validate_only:
            self._ledger.store.insert(record, packed, key, check_only=True)
            return Operation(done=True, result=spec.types.pack(Empty()))
        if spec.function is None:
            return self._ledger.store.insert(record, packed, key).record.operation
        return self._insert_and_run(spec, record, request, packed, key)

    def run(self, spec: MethodSpec, name: str, slot: Slot, request: object | None = None) -> None:
        """Have the work of a stored operation done in this process.

        Raises:
            Unavailable: The executor refuses.
        """
        task = Run(
            name=name,
            spec=spec,
            ledger=self._ledger,
            owner=self._owner,
            lease=self._lease,
            domain=self.domain,
            request=request,
            retire=self._retire,
        )
        with self._lock:
            self._runs[name] = task
        try:
            slot.submit(task)
        except BaseException:
            self._retire(task)
            raise
        self._nudge()

    def resume(self, spec: MethodSpec, name: str) -> None:
        """Take over work that nobody holds.

        Raises:
            LeaseLost: Somebody does hold it.
            ResourceExhausted, Unavailable: There is no room for it.
        """
        slot = self._executor.reserve()
        try:
            now = self._ledger.store.now()
            taken = self._ledger.apply(name, take_over(self._owner, now + self._lease, now))
            assert taken is not None  # a take-over removes nothing
        except BaseException:
            slot.release()
            raise
        try:
            self.run(spec, name, slot)
        except BaseException:  # the executor is stopping: others must not wait for our lease
            self._ledger.apply(name, release(taken.attempt, self._ledger.store.now()))
            raise

    def cancel(self, name: str) -> None:
        """Let a request to cancel reach the work, if this process holds it."""
        run = self._runs.get(name)
        if run is None:
            return
        if self._executor.withdraw(name):
            run.end_unbegun()
        else:
            run.cancel()

    @property
    def holds_work(self) -> bool:
        """Whether this process has work, begun or waiting."""
        return bool(self._runs)

    @property
    def held(self) -> frozenset[str]:
        """The names of the operations whose work that is."""
        with self._lock:
            return frozenset(self._runs)

    def stop(self, drain: timedelta) -> None:
        """Start nothing more; give running work time to end; hand the rest back (design §5)."""
        self._stopping = True
        # A store that is away is not asked once for each: what it does not hear of is taken over
        # when the leases run out.
        there = True
        for task in self._executor.stop():
            run = self._runs.get(task.name)
            if run is not None:
                there = there and run.hand_back()
                self._retire(run)
        if not self._executor.join(drain.total_seconds()):
            for run in list(self._runs.values()):
                there = run.hand_back() if there else run.give_up()
            self._executor.join(1.0)

    def _retire(self, run: Run) -> None:
        with self._lock:
            if self._runs.get(run.name) is run:  # not a later one, begun after a lost lease
                del self._runs[run.name]

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
        now = self._ledger.store.now()
        held = spec.function is not None
        record = Record(
            name=join_name(parent, new_id(secrets.token_bytes)),
            parent=parent,
            method=spec.full_name,
            metadata=None if metadata is None else spec.types.pack(metadata),
            create_time=now,
            update_time=now,
            owner=self._owner if held else "",
            lease_until=now + self._lease if held else None,
            caller=caller,
            request_id=key.request_id if key else "",
            target=target,
        )
        return record.with_metadata(spec.stamp(record))

    def _insert_and_run(
        self,
        spec: MethodSpec,
        record: Record,
        request: object,
        packed: Any,
        key: RequestKey | None,
    ) -> Operation:
        store = self._ledger.store
        try:
            slot = self._executor.reserve()
        except ResourceExhausted:
            # A repeated start needs no room: it gets the operation that it has started before.
            known = store.insert(record, packed, key, check_only=True)
            if known.fresh:
                raise
            return known.record.operation
        try:
            inserted = store.insert(record, packed, key)
        except BaseException:
            slot.release()
            raise
        if not inserted.fresh:
            slot.release()
            return inserted.record.operation
        try:
            self.run(spec, record.name, slot, request)
        except BaseException as exc:
            if isinstance(exc, Unavailable) and self._stopping:
                # Another call with its id may have been answered with it: the next process does it.
                self._ledger.apply(record.name, release(record.attempt, store.now()))
                return record.operation
            store.forget(record.name)  # a failed start is not remembered (spec §9.3)
            raise
        return self._present(record)

    def _present(self, record: Record) -> Operation:
        if record.name in self._runs:
            return record.operation
        try:  # over already: the inline executor, or very quick work (spec §9.8)
            return self._ledger.store.get(record.name).operation
        except OperationNotFound:
            return record.operation


def _packed(spec: MethodSpec, request: object) -> Any:
    try:
        return spec.types.pack(request)
    except EncodingError as exc:
        path = f"request.{exc.path}" if exc.path else "request"
        raise InvalidArgument(path, exc.description) from None


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
