"""The options of methods that this library reads and writes (spec §1.1)."""

from __future__ import annotations

from typing import Any, Final

from google.api import annotations_pb2
from google.longrunning import operations_proto_pb2

# Their stubs and their code disagree on what an extension is.
HTTP: Final[Any] = annotations_pb2.http
"""``google.api.http``: the path."""
OPERATION_INFO: Final[Any] = operations_proto_pb2.operation_info
"""``google.longrunning.operation_info``, number 1049: the types."""
