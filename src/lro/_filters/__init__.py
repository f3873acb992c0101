"""Filters of ListOperations in the language of AIP-160, parsed once, evaluated exactly (spec §7).

``parse`` turns a text into a syntax tree, and ``filter`` checks the tree and turns it into a
``plan``, which is evaluated. ``prefiltering`` makes a simpler test from a plan, a ``prefilter``,
for the store. ``indexes`` has the metadata paths that stores can look up. Import the modules
directly: a service needs most modules only to compile a filter.
"""
