"""An executor for many machines: Celery carries the names of operations, its workers do the work.

One module makes the service, and is imported by web servers, which start operations, and by
``celery -A module worker``, which does them::

    app = celery.Celery("pictures", broker="redis://localhost")
    service = lro.Service(PostgresStore(url), CeleryExecutor(app))

    @service.method("acme.images.v1.Images.Resize")
    def resize(request: ResizeRequest, job: lro.Job[ResizeMetadata]) -> ResizeResponse: ...

Both must share the store, which alone knows the state of operations. A message carries only the
name of an operation. The worker that receives it claims the operation in the store, which refuses
if another worker has it, it has ended, is not due, is of a paused method, or over a limit. So
messages may come twice, early, late, or out of order. A message that never comes is sent once more
after ``redelivery``, by any process on the store that declares the method. A lost worker is found
by its lease, as with every executor (spec §2.8).
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
    "shared": False,  # with other apps
    "serializer": "json",
    "ignore_result": True,  # the store has it
    "store_errors_even_if_ignored": False,
    "track_started": False,
    # A message whose worker dies before it claims the operation goes to another at once; after the
    # claim it is refused until the lease is over, so that work which kills its worker does not
    # kill one worker after the other.
    "acks_late": True,
    "reject_on_worker_lost": True,
    "retry_on_worker_lost": False,
    "acks_on_failure_or_timeout": True,
}

_taken: Final[weakref.WeakKeyDictionary[Any, set[str]]] = weakref.WeakKeyDictionary()


class CeleryExecutor:
    """Runs operations in the workers of a Celery app.

    ``queue`` is where the names are sent; None: where the app's ``task_routes`` say. ``redelivery``
    is how long a name may take to be claimed before it is sent once more; then as long again as the
    operation is old, so that a long queue is not filled with repetitions. ``task_name`` is what the
    app's task is called, one for each service. ``broker_timeout`` bounds each connect and each
    answer when a name is sent, whatever the app's settings: a start never hangs, and with the
    broker away it ends with UNAVAILABLE. ``connections`` is how many starts may send at once.

    Cancellation reaches a function in whatever process it runs, when it looks: at its next
    ``job.report()``, ``job.sleep()`` or ``job.raise_if_cancelled()``. Nothing is killed for it, or
    for a method's time limit. A name that is sent cannot be taken back: the service ends a
    cancelled operation that no worker has begun, and its message then does nothing.

    The name of delayed or retried work is sent when the work is due, and that of a method with
    ``concurrency`` or ``rate`` when there is room: until then it waits in the store, where
    priorities and turns of keys decide. In the broker's queue they mean nothing. A worker that
    gets a name whose work may not begin is free at once. If a name is lost, it takes its place
    within the limits until it is sent again.

    A worker that stops warmly (SIGTERM) first ends what it has begun, however long that takes. One
    with Celery's usual pool of processes that stops coldly (SIGQUIT; SIGTERM where
    ``REMAP_SIGTERM=SIGQUIT`` is set; each after ``worker_soft_shutdown_timeout``, if the app sets
    one) hands its work back, for another to go on with at once; that counts as no lost worker. One
    that is killed leaves its lease to run out; so does one that Celery's ``task_time_limit``
    kills, for which a method's ``time_limit`` is the better way. ``task_soft_time_limit`` is not
    for operations and has no effect on them.

    A worker takes ``worker_prefetch_multiplier`` names for each of its processes, 4 unless the app
    says otherwise, and they wait behind what it does though other workers are idle. For work that
    takes long, set it to 1.

    A worker that cannot reach the store gives the message back to the broker after a second. It is
    not retried by Celery's own means, which would send a new one with a delay: that is one thing
    more to be lost. If the message is lost on its way back, the redelivery makes it good.

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
        """How many operations run in this process; it can send any number of names."""
        return ExecutorUsage(0 if self._worker_task is None else self._worker_task.running)

    def attach(
        self,
        work: Callable[[str], None],
        close: Callable[[timedelta], None] | None = None,
        begin: Callable[[], None] | None = None,
        freed: Callable[[], None] | None = None,
    ) -> None:
        """Register the task of the app that does ``work`` for a name.

        A worker of the app that is ready calls ``begin``, in its main process. A process of its
        pool that ends calls ``close``: Celery ends it without the functions of ``atexit``.
        ``freed`` is called when a task of this process is over.

        Raises:
            DeclarationError: The app has a task of this name from another service.
        """
        names = _taken.setdefault(self._app, set())
        if self._task_name in names:
            text = "is the task of another service on this Celery app; give a task_name of its own"
            raise DeclarationError(self._task_name, text)
        worker_task = self._worker_task = CeleryWorkerTask(work, close, freed)

        def carry(*arguments: object, **named: object) -> None:  # Celery takes no bound method
            worker_task.run(*arguments, **named)

        self._task = self._app.task(carry, name=self._task_name, **_OPTIONS)
        names.add(self._task_name)
        self._begin = begin
        worker_ready.connect(self._ready)  # for as long as the executor lives
        worker_process_shutdown.connect(self._end)

    def begin_here(self) -> None:
        """Not needed here: workers do the work."""

    def admit(self, spec: MethodSpec) -> None:
        """Any function can be called by a worker, which has declared it too."""

    def reserve(self) -> _Slot:
        """Reserve room to send one name: there is any amount, if the broker is there.

        Raises:
            Unavailable: The executor is stopping, or the broker cannot be reached.
        """
        self._check_running()
        if not self._eager:
            self._publisher.check_reachable()
        return _Slot(self)

    def stop(self) -> None:
        """Send and begin nothing more."""
        self._stopped = True
        if self._worker_task is not None:
            self._worker_task.stopped = True
        self._publisher.close()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for what runs here; return whether nothing does."""
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
        if self._eager:  # the app's tests: tasks are done where they are sent
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
