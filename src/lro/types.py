"""Types of messages: well-known types, error details, integer widths, the registry (spec §1)."""

from typing import TYPE_CHECKING

from lro._base.by_fields import ByFields
from lro._base.late_names import late_names as _late_names
from lro._base.status import (
    WRAPPED_TYPES,
    AnyMessage,
    BadRequest,
    DebugInfo,
    ErrorInfo,
    FieldViolation,
    Help,
    HelpLink,
    Json,
    LocalizedMessage,
    PreconditionFailure,
    PreconditionViolation,
    QuotaFailure,
    QuotaViolation,
    RequestInfo,
    ResourceInfo,
    RetryInfo,
)
from lro._messages.registry import Codec, CodecFactory, TypeRegistry, full_name
from lro._messages.schema import (
    Field,
    Float,
    Int32,
    Int64,
    Kind,
    Label,
    Shape,
    UInt32,
    UInt64,
    field_number,
    message,
    simple_name,
)
from lro._messages.shapes import is_message_class
from lro._messages.times import Duration, Timestamp
from lro._messages.wellknown import (
    BoolValue,
    BytesValue,
    DoubleValue,
    Empty,
    FieldMask,
    FloatValue,
    Int32Value,
    Int64Value,
    ListValue,
    StringValue,
    Struct,
    UInt32Value,
    UInt64Value,
    Value,
)

if TYPE_CHECKING:
    from lro._model.method_names import MethodName, OperationInfoRegistry
    from lro._model.operation import OperationInfo
else:
    __getattr__ = _late_names(
        globals(),
        {
            "lro._model.method_names": "MethodName OperationInfoRegistry",
            "lro._model.operation": "OperationInfo",
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "WRAPPED_TYPES",
    "AnyMessage",
    "BadRequest",
    "BoolValue",
    "ByFields",
    "BytesValue",
    "Codec",
    "CodecFactory",
    "DebugInfo",
    "DoubleValue",
    "Duration",
    "Empty",
    "ErrorInfo",
    "Field",
    "FieldMask",
    "FieldViolation",
    "Float",
    "FloatValue",
    "Help",
    "HelpLink",
    "Int32",
    "Int32Value",
    "Int64",
    "Int64Value",
    "Json",
    "Kind",
    "Label",
    "ListValue",
    "LocalizedMessage",
    "MethodName",
    "OperationInfo",
    "OperationInfoRegistry",
    "PreconditionFailure",
    "PreconditionViolation",
    "QuotaFailure",
    "QuotaViolation",
    "RequestInfo",
    "ResourceInfo",
    "RetryInfo",
    "Shape",
    "StringValue",
    "Struct",
    "Timestamp",
    "TypeRegistry",
    "UInt32",
    "UInt32Value",
    "UInt64",
    "UInt64Value",
    "Value",
    "field_number",
    "full_name",
    "is_message_class",
    "message",
    "simple_name",
]
