"""Filters of ListOperations: AIP-160, read once, evaluated exactly (spec §7).

A filter goes through ``_tokens`` and ``_parse`` to a syntax tree (``_tree``), through ``_check``
to a checked one (``_plan``), which is evaluated, and of which ``_narrow`` makes what a store may
look for first. Each is imported from its module, since a service needs most of them only when the
first filter is compiled.
"""
