"""The options in proto files that this library reads and writes (spec §1.1)."""

from __future__ import annotations

from typing import Any, Final

from google.api import annotations_pb2, client_pb2, field_behavior_pb2, field_info_pb2
from google.longrunning import operations_proto_pb2

# The stubs of these packages disagree with their code about the type of extensions.
HTTP: Final[Any] = annotations_pb2.http
"""``google.api.http``: the path of a method."""
OPERATION_INFO: Final[Any] = operations_proto_pb2.operation_info
"""``google.longrunning.operation_info``, number 1049: the types of a method."""
DEFAULT_HOST: Final[Any] = client_pb2.default_host
"""``google.api.default_host`` of a service: its domain."""
FIELD_BEHAVIOR: Final[Any] = field_behavior_pb2.field_behavior
"""``google.api.field_behavior``: for example, whether a caller must set a field (AIP-203)."""
FIELD_INFO: Final[Any] = field_info_pb2.field_info
"""``google.api.field_info``: the format of a text (AIP-202)."""
API_FILES: Final = tuple(
    module.DESCRIPTOR
    for module in (annotations_pb2, client_pb2, field_behavior_pb2, field_info_pb2)
)
"""The files of these options, without ``operation_info``."""
