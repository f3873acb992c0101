"""Filters of ListOperations: AIP-160, read once, evaluated exactly (spec §7)."""

from lro._filters._filter import Filter, compile_filter
from lro._filters._parse import parse
from lro._filters._plan import Subject
from lro._filters._tree import Tree
from lro._filters._types import MessageType

__all__ = ["Filter", "MessageType", "Subject", "Tree", "compile_filter", "parse"]
