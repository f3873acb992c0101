"""Request, metadata and response messages of the methods that most tests declare."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from lro import Int32, message


@message("acme.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """A request with a text, a size and a field for any other JSON."""

    text: str = ""
    size: int = 0
    rest: Mapping[str, object] = attrs.field(factory=dict)


@message("acme.v1.WorkMetadata")
@attrs.frozen
class WorkMetadata:
    """Metadata with progress and every conventional field."""

    percent: Int32 = 0
    note: str = ""
    create_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    cancel_requested: bool = False


@message("acme.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """A response with a text."""

    text: str = ""
