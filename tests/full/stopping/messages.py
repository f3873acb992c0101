"""The messages of the method that the hosts under test serve."""

from __future__ import annotations

import attrs

import lro


@lro.message("stopping.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """How long the work takes; below zero: until there is a file ``go`` in the folder."""

    milliseconds: lro.Int32 = 0


@lro.message("stopping.v1.WorkMetadata")
@attrs.frozen
class WorkMetadata:
    """Metadata without fields."""


@lro.message("stopping.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """How long the work took."""

    milliseconds: lro.Int32 = 0
