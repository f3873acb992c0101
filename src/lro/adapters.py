"""The ports that a store or an executor of your own implements, and the values they exchange."""

from lro._engine.executor_port import (
    CancelSupport,
    Executor,
    Slot,
    Task,
)
from lro._engine.store_port import (
    ChangeSubscription,
    DatabaseConnection,
    Done,
    Expired,
    Found,
    Inserted,
    Orphans,
    Page,
    Renewed,
    RequestKey,
    StateSummary,
    Store,
    TransactionalStore,
)
from lro._model.operation import Change, Record
from lro._model.page_tokens import Cursor

__all__ = [
    "CancelSupport",
    "Change",
    "ChangeSubscription",
    "Cursor",
    "DatabaseConnection",
    "Done",
    "Executor",
    "Expired",
    "Found",
    "Inserted",
    "Orphans",
    "Page",
    "Record",
    "Renewed",
    "RequestKey",
    "Slot",
    "StateSummary",
    "Store",
    "Task",
    "TransactionalStore",
]
