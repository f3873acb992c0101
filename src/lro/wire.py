"""Requests and responses of the verbs, their JSON, names, http rules, routes and signed webhooks.

Use this module to write a client or an edge. ``lro_client`` uses the same names.
"""

from typing import TYPE_CHECKING

from lro._base.late_names import late_names as _late_names
from lro._base.status import code_from_http
from lro._messages.json_text import canonical, check_values, dumps, loads, loads_strict
from lro._messages.times import datetime_text, duration_text, parse_duration
from lro._model.description import View
from lro._model.http_rules import Literal, Template, Wildcard, path_template
from lro._model.json import (
    batch_from_json,
    batch_to_json,
    error_body,
    error_fields,
    operation_from_json,
    operation_to_json,
    page_from_json,
    page_to_json,
    status_from_error_body,
    status_from_json,
    status_to_json,
)
from lro._model.operation import (
    MAX_NAMES,
    MAX_REQUEST_ID,
    BatchGetOperationsRequest,
    BatchGetOperationsResponse,
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    MissingOperation,
    OperationName,
    RerunOperationRequest,
    WaitOperationRequest,
    is_small,
    join_name,
    normal_request_id,
    normalise_parent,
    parse_name,
    validate,
)

if TYPE_CHECKING:
    from lro._base.plain_text import plain
    from lro._http.routes import Route, RouteTable, default_routes, extension_routes
    from lro._model.signatures import (
        WEBHOOK_HEADERS,
        SignedWebhook,
        sign_webhook,
        verify_webhook,
        webhook_key,
    )
    from lro._model.transcoding import AS_TEXT
else:
    __getattr__ = _late_names(
        globals(),
        {
            "lro._base.plain_text": "plain",
            "lro._http.routes": "Route RouteTable default_routes extension_routes",
            "lro._model.signatures": """
                WEBHOOK_HEADERS SignedWebhook sign_webhook verify_webhook webhook_key
                """,
            "lro._model.transcoding": "AS_TEXT",
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AS_TEXT",
    "MAX_NAMES",
    "MAX_REQUEST_ID",
    "WEBHOOK_HEADERS",
    "BatchGetOperationsRequest",
    "BatchGetOperationsResponse",
    "CancelOperationRequest",
    "DeleteOperationRequest",
    "GetOperationRequest",
    "ListOperationsRequest",
    "ListOperationsResponse",
    "Literal",
    "MissingOperation",
    "OperationName",
    "RerunOperationRequest",
    "Route",
    "RouteTable",
    "SignedWebhook",
    "Template",
    "View",
    "WaitOperationRequest",
    "Wildcard",
    "batch_from_json",
    "batch_to_json",
    "canonical",
    "check_values",
    "code_from_http",
    "datetime_text",
    "default_routes",
    "dumps",
    "duration_text",
    "error_body",
    "error_fields",
    "extension_routes",
    "is_small",
    "join_name",
    "loads",
    "loads_strict",
    "normal_request_id",
    "normalise_parent",
    "operation_from_json",
    "operation_to_json",
    "page_from_json",
    "page_to_json",
    "parse_duration",
    "parse_name",
    "path_template",
    "plain",
    "sign_webhook",
    "status_from_error_body",
    "status_from_json",
    "status_to_json",
    "validate",
    "verify_webhook",
    "webhook_key",
]
