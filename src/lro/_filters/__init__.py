"""Filters of ListOperations: AIP-160, read once, evaluated exactly (spec §7).

A filter goes through ``_tokens`` and ``_parse`` to a syntax tree (``_tree``), through ``_check``
to a checked one (``_plan``), which is evaluated, and of which ``_narrow`` makes what a store may
look for first.
"""

from lro._filters.filter import Filter, compile_filter
from lro._filters.indexable import Indexable, indexable
from lro._filters.parse import parse
from lro._filters.paths import Step
from lro._filters.plan import Subject
from lro._filters.tree import Tree
from lro._filters.types import MessageType

__all__ = [
    "Filter",
    "Indexable",
    "MessageType",
    "Step",
    "Subject",
    "Tree",
    "compile_filter",
    "indexable",
    "parse",
]
