"""Filters of ListOperations: AIP-160, read once, evaluated exactly (spec §7).

A filter goes through ``_tokens`` and ``_parse`` to a syntax tree (``_tree``), through ``_check``
to a checked one (``_plan``), which is evaluated and which a store may read to narrow its query.
"""

from lro._filters._filter import Filter, compile_filter
from lro._filters._parse import parse
from lro._filters._plan import Subject
from lro._filters._tree import Tree
from lro._filters._types import MessageType

__all__ = ["Filter", "MessageType", "Subject", "Tree", "compile_filter", "parse"]
