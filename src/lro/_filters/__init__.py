"""Filters of ListOperations: AIP-160, read once, evaluated exactly (spec §7).

``parse`` turns a text into a syntax tree, and ``filter`` checks the tree and turns it into a
``plan``, which is evaluated. ``prefiltering`` makes the part of a plan that a store can evaluate
(``prefilter``). ``indexes`` has the metadata paths that stores can look up. Import the modules
directly: a service needs most of them only to compile a filter.
"""
