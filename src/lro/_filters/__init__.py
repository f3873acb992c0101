"""Filters of ListOperations: AIP-160, read once, evaluated exactly (spec §7).

A filter goes through ``tokens`` and ``parse`` to a syntax tree (``tree``), and through ``filter``
to a checked one (``plan``), which is evaluated; ``narrow`` makes of it what a store looks for first
(``prefilter``). ``indexes`` are the paths of a service's metadata that stores can look up. Each is
imported from its module, since a service needs most of them only when it compiles a filter.
"""
