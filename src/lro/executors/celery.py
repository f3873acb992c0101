"""An executor for many machines: Celery delivers names of operations; its workers run them.

One module makes the service. Web servers import it to start operations, and
``celery -A module worker`` imports it to run them::

    app = celery.Celery("pictures", broker="redis://localhost")
    service = lro.Service(PostgresStore(url), CeleryExecutor(app))

    @service.method("acme.images.v1.Images.Resize")
    def resize(request: ResizeRequest, job: lro.Job[ResizeMetadata]) -> ResizeResponse: ...

Servers and workers must share the store, which alone knows the state of operations. A message has
only the name of an operation. The worker that receives it claims the operation in the store. The
store refuses the claim if another worker has the operation, if it has ended or is not due, if its
method is paused, or if a limit is reached. So messages may arrive twice, early, late, or out of
order. A lost message is sent again after ``redelivery``, by any process on the store that declares
the method. A lost worker is detected by its lease, as with every executor (spec §2.8).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from lro._base.arguments import check_count, check_instance, check_span, check_text
from lro._base.errors import DeclarationError, MissingExtra, Unavailable
from lro._engine.executor_port import CancelSupport, ExecutorUsage, Task
from lro._engine.method_spec import MethodSpec

try:
    import celery
    from celery.signals import worker_process_shutdown, worker_ready

    from lro.executors._celery_messages import STOPPING, CeleryWorkerTask, NamePublisher
except ImportError as _exc:
    raise MissingExtra("the Celery executor", "celery") from _exc

__all__ = ["CeleryExecutor"]

_OPTIONS: Final = {
    "shared": False,  # do not add the task to other apps
    "serializer": "json",
    "ignore_result": True,  # the store has the result
    "store_errors_even_if_ignored": False,
    "track_started": False,
    # If a worker dies before it claims the operation, its message goes to another worker at once.
    # After the claim, the store refuses the operation to other workers until the lease expires, so
    # that work that kills its worker does not kill one worker after another.
    "acks_late": True,
    "reject_on_worker_lost": True,
    "retry_on_worker_lost": False,
    "acks_on_failure_or_timeout": True,
}

_task_names: Final[weakref.WeakKeyDictionary[Any, set[str]]] = weakref.WeakKeyDictionary()


class CeleryExecutor:
    """Runs operations in the workers of a Celery app.

    ``queue`` is the queue for names; None uses the app's ``task_routes``. A name that is not
    claimed within ``redelivery`` is sent again. Each later pause is as long as the operation's age
    at that time, so that repeated names do not fill a long queue. ``task_name`` is the name of the
    app's task, one for each service. ``broker_timeout`` bounds each attempt to connect and each
    wait for an answer when a name is sent, whatever the app's settings. So a start never hangs, and
    is UNAVAILABLE if the broker cannot be reached. ``connections`` is the number of starts that can
    send at once.

    Cancellation reaches a function in any process, at its next check: ``job.report()``,
    ``job.sleep()`` or ``job.raise_if_cancelled()``. Neither a cancellation nor a method's time
    limit kills a process. A name that was sent cannot be recalled: if no worker has begun the
    cancelled operation, the service ends it, and the message has no effect.

    The name of delayed or retried work is sent when the work is due. The name of work with
    ``concurrency`` or ``rate`` is sent when the limits allow it. Until then the work waits in the
    store, where priorities and the turns of keys set the order. The broker's queue ignores
    priorities and keys. A worker that receives a name whose work must not begin is free again at
    once. A lost name counts towards the limits until it is sent again.

    On a warm shutdown (SIGTERM), a worker first finishes its running work, without a time limit. A
    cold shutdown is requested by SIGQUIT, or by SIGTERM if ``REMAP_SIGTERM=SIGQUIT`` is set. It
    begins after ``worker_soft_shutdown_timeout``, if the app sets this time. On a cold shutdown, a
    worker with Celery's usual pool of processes releases its work. Another worker continues the
    work at once, and the work does not count as lost. If a worker is killed, as by Celery's
    ``task_time_limit``, its lease must expire first: use a method's ``time_limit`` instead.
    ``task_soft_time_limit`` is ignored.

    A worker takes ``worker_prefetch_multiplier`` names for each of its processes, by default 4.
    These names wait for its running work even if other workers are idle. For long work, set 1.

    A worker that cannot reach the store returns the message to the broker after a second. It does
    not use Celery's retry, which sends a new, delayed message that could be lost. If the message is
    lost on its way back, the name is sent again after ``redelivery``.

    Raises:
        DeclarationError: An argument is of a wrong type or out of its bounds.
    """

    cancel_support = CancelSupport.COOPERATIVE

    def __init__(
        self,
        app: celery.Celery,
        *,
        queue: str | None = None,
        redelivery: timedelta = timedelta(seconds=60),
        task_name: str = "lro.work",
        broker_timeout: timedelta = timedelta(seconds=1),
        connections: int = 10,
    ) -> None:
        check_instance("app", app, celery.Celery, "a Celery app")
        if queue is not None:
            check_text("queue", queue, empty=False)
        check_span("redelivery", redelivery)
        check_text("task_name", task_name, empty=False)
        check_span("broker_timeout", broker_timeout)
        check_count("connections", connections)
        self.redelivery = redelivery
        self._app: Any = app
        self._route = {} if queue is None else {"queue": queue}
        self._task_name = task_name
        self._publisher = NamePublisher(app, broker_timeout, connections)
        self._worker_task: CeleryWorkerTask | None = None
        self._task: Any = None
        self._stopped = False

    @property
    def submits_block(self) -> bool:
        """True: a name is sent over the network."""
        return True

    @property
    def usage(self) -> ExecutorUsage:
        """The number of operations that run in this process; this executor sets no limit."""
        return ExecutorUsage(0 if self._worker_task is None else self._worker_task.running)

    def attach(
        self,
        work: Callable[[str], None],
        close: Callable[[timedelta], None] | None = None,
        begin: Callable[[], None] | None = None,
        freed: Callable[[], None] | None = None,
    ) -> None:
        """Register the app's task, which calls ``work`` with a name.

        A worker of the app calls ``begin`` in its main process when it is ready. A process of its
        pool calls ``close`` when it ends, because Celery ends it without the ``atexit`` functions.
        ``freed`` is called when a task of this process ends.

        Raises:
            DeclarationError: The app has a task of this name from another service.
        """
        names = _task_names.setdefault(self._app, set())
        if self._task_name in names:
            text = "is the task of another service on this Celery app; give a task_name of its own"
            raise DeclarationError(self._task_name, text)
        worker_task = self._worker_task = CeleryWorkerTask(work, close, freed)

        def carry(*arguments: object, **named: object) -> None:  # Celery accepts no bound method
            worker_task.run(*arguments, **named)

        self._task = self._app.task(carry, name=self._task_name, **_OPTIONS)
        names.add(self._task_name)
        self._begin = begin
        worker_ready.connect(self._ready)  # the handlers live as long as the executor
        worker_process_shutdown.connect(self._end)

    def begin_here(self) -> None:
        """Do nothing: Celery's workers run the work, not the caller's event loop."""

    def check_method(self, spec: MethodSpec) -> None:
        """Accept any function, because the workers declare the method, too."""

    def reserve(self) -> _Slot:
        """Reserve a slot to send one name, if the broker can be reached.

        Raises:
            Unavailable: The executor is stopping, or the broker cannot be reached.
        """
        self._check_running()
        if not self._eager:
            self._publisher.check_reachable()
        return _Slot(self)

    def stop(self) -> None:
        """Send no more names, and begin no more work."""
        self._stopped = True
        if self._worker_task is not None:
            self._worker_task.stopped = True
        self._publisher.close()

    def reopen(self) -> None:
        """Send names again after :meth:`stop`."""
        self._publisher.reopen()
        if self._worker_task is not None:
            self._worker_task.stopped = False
        self._stopped = False

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running work; return True if none is left."""
        return self._worker_task is None or self._worker_task.join(seconds)

    def _ready(self, sender: Any, **_: object) -> None:
        if sender.app is self._app and self._begin is not None:
            self._begin()

    def _end(self, **_: object) -> None:
        if self._worker_task is not None:
            self._worker_task.end()

    @property
    def _eager(self) -> bool:
        return bool(self._app.conf.task_always_eager)

    def _check_running(self) -> None:
        if self._stopped:
            raise Unavailable(STOPPING)

    def _send(self, name: str) -> None:
        self._check_running()
        if self._eager:  # in tests of the app, the sender runs the task
            self._task.apply((name,))
            return
        self._publisher.publish(
            lambda connection: self._task.apply_async(
                (name,), connection=connection, retry=False, add_to_parent=False, **self._route
            )
        )


class _Slot:
    def __init__(self, executor: CeleryExecutor) -> None:
        self._executor = executor

    def submit(self, task: Task) -> None:
        self._executor._send(task.name)

    def release(self) -> None:
        pass
