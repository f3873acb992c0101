"""The options in proto files that this library reads and writes (spec §1.1)."""

from __future__ import annotations

from typing import Any, Final

from google.api import annotations_pb2, client_pb2, field_behavior_pb2, field_info_pb2
from google.longrunning import operations_proto_pb2

# Their stubs and their code disagree on what an extension is.
HTTP: Final[Any] = annotations_pb2.http
"""``google.api.http``: the path."""
OPERATION_INFO: Final[Any] = operations_proto_pb2.operation_info
"""``google.longrunning.operation_info``, number 1049: the types."""
DEFAULT_HOST: Final[Any] = client_pb2.default_host
"""``google.api.default_host`` of a service: where it is served."""
FIELD_BEHAVIOR: Final[Any] = field_behavior_pb2.field_behavior
"""``google.api.field_behavior``: whether a caller has to set a field (AIP-203)."""
FIELD_INFO: Final[Any] = field_info_pb2.field_info
"""``google.api.field_info``: the format of a text (AIP-202)."""
API_FILES: Final = tuple(
    module.DESCRIPTOR
    for module in (annotations_pb2, client_pb2, field_behavior_pb2, field_info_pb2)
)
"""The files of these options but ``operation_info``."""
