"""The options of a service, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Final, Literal, TypedDict

import attrs

from lro._base.arguments import (
    check,
    check_flag,
    check_function,
    check_instance,
    check_span,
    check_takes,
    check_text,
)
from lro._engine.access import VERBS, Authorize, Staff, check_verbs
from lro._engine.events import Observer
from lro._engine.limits import DEFAULT_LIMITS, Limits
from lro._engine.maintenance import LEAST_LEASE
from lro._engine.method_spec import Around
from lro._engine.telemetry import Telemetry
from lro._engine.webhook_sender import WebhookSender
from lro._messages.registry import TypeRegistry

DEFAULT_DOMAIN: Final = "lro.local"


class ServiceKeywords(TypedDict, total=False):
    """The keyword arguments of :class:`lro.Service`."""

    types: TypeRegistry | None
    domain: str
    verbs: Iterable[str]
    max_wait: timedelta
    keep_for: timedelta
    lease: timedelta
    authorize: Authorize | None
    owner_only: bool
    staff: Staff | None
    maintenance: bool
    drain: timedelta
    limits: Limits
    observers: Collection[Observer]
    statistics: bool
    around: Around | None
    telemetry: Telemetry | Literal[False] | None
    webhooks: WebhookSender | None
    clock: Callable[[], float]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServiceOptions:
    """The options of a service: see :class:`lro.Service`.

    Raises:
        DeclarationError: An option has the wrong type, or is out of range.
    """

    types: TypeRegistry | None = None
    domain: str = DEFAULT_DOMAIN
    verbs: Iterable[str] = VERBS
    max_wait: timedelta = timedelta(seconds=60)
    keep_for: timedelta = timedelta(days=30)
    lease: timedelta = timedelta(seconds=15)
    authorize: Authorize | None = None
    owner_only: bool = False
    staff: Staff | None = None
    maintenance: bool = True
    drain: timedelta = timedelta(seconds=10)
    limits: Limits = DEFAULT_LIMITS
    observers: Collection[Observer] = ()
    statistics: bool = True
    around: Around | None = None
    telemetry: Telemetry | Literal[False] | None = None
    webhooks: WebhookSender | None = None
    clock: Callable[[], float] = time.monotonic

    def __attrs_post_init__(self) -> None:
        if self.types is not None:
            check_instance("types", self.types, TypeRegistry, "a TypeRegistry")
        check_instance("limits", self.limits, Limits, "Limits(...)")
        check_function("clock", self.clock)
        sender = self.webhooks
        fine = sender is None or (hasattr(sender, "attach") and not isinstance(sender, type))
        check("webhooks", sender, "None or lro.webhooks.Webhooks([Endpoint(...)])", fine=fine)
        check_text("domain", self.domain, empty=False)
        check_verbs(self.verbs)
        for name in ("owner_only", "maintenance", "statistics"):
            check_flag(name, getattr(self, name))
        if self.staff is not None:
            check_function("staff", self.staff)
            wanted = "None without owner_only=True, since every caller then sees all operations"
            check("staff", self.staff, wanted, fine=self.owner_only)
        check_span("lease", self.lease, least=LEAST_LEASE)
        check_span("keep_for", self.keep_for, zero=True)
        check_span("max_wait", self.max_wait, zero=True)  # zero: every Wait answers at once
        check_span("drain", self.drain, zero=True)  # zero: running work is released at once
        if self.around is not None:
            wanted = "a function of a job that gives a context manager"
            check_takes("around", self.around, 1, wanted)
        if self.telemetry is not None and self.telemetry is not False:
            wanted = "lro.telemetry.Telemetry(...), None or False"
            check_instance("telemetry", self.telemetry, Telemetry, wanted)
