"""Check the ``operation_info`` of real ``.proto`` files (spec §8). Needs the extra ``protobuf``.

:func:`lint` finds problems of the long-running methods of a ``FileDescriptorSet``, :func:`breaking`
finds the breaking changes of a newer set, and :func:`operation_infos` reads the declarations.
"""

from lro.errors import MissingExtra

try:
    from google.longrunning import operations_pb2 as _operations_pb2  # noqa: F401
    from google.protobuf import descriptor_pb2 as _descriptor_pb2  # noqa: F401
except ImportError as _exc:
    raise MissingExtra("the linter", "protobuf") from _exc

from lro.lint._breaking import breaking
from lro.lint._lint import (
    BREAKING_CODES,
    LINT_CODES,
    Breaking,
    Finding,
    Severity,
    lint,
    operation_infos,
    read_allowances,
)

__all__ = [
    "BREAKING_CODES",
    "LINT_CODES",
    "Breaking",
    "Finding",
    "Severity",
    "breaking",
    "lint",
    "operation_infos",
    "read_allowances",
]
