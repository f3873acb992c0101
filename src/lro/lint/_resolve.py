"""What a type name of ``operation_info`` means in a set (spec §8.3)."""

from __future__ import annotations

from typing import Final

import attrs

from lro.lint._descriptors import DescriptorSet, Rpc

FOUND: Final = ""
MISSING: Final = "missing"
NOT_IMPORTED: Final = "not-imported"
NOT_QUALIFIED: Final = "not-qualified"
UNRESOLVED: Final = "unresolved"


@attrs.frozen
class Resolution:
    """A written name, what is wrong with it, and the message that it is or may be meant.

    ``problem`` is the end of a finding's code. ``full_name`` is the message found; for a problem,
    the nearest one of the set, or nothing.
    """

    written: str
    problem: str
    full_name: str = ""

    @property
    def resolved(self) -> str:
        """The full name of the type, or nothing if the name has a problem."""
        return "" if self.problem else self.full_name

    @property
    def compared(self) -> str:
        """What :func:`lro.lint.breaking` goes by: the full name, else the text (spec §8.5).

        The full name of a type that is only not imported is known: importing it changes nothing.
        """
        if self.problem in (FOUND, NOT_IMPORTED):
            return self.full_name
        return self.written.removeprefix(".")


def resolve(files: DescriptorSet, rpc: Rpc, written: str) -> Resolution:
    """Find the message that ``rpc`` declares by this name."""
    if not written:
        return Resolution(written, MISSING)
    candidates = candidates_for(rpc, written)
    visible = files.visible(rpc.file)
    homes = {name: files.homes(name) for name in candidates}
    for name, declared_in in homes.items():
        if not visible.isdisjoint(declared_in):
            return Resolution(written, FOUND, name)
    for name, declared_in in homes.items():
        if declared_in:
            return Resolution(written, NOT_IMPORTED, name)
    meant = "" if written.startswith(".") else files.ending_in(written, rpc.name.package)
    return Resolution(written, NOT_QUALIFIED if meant else UNRESOLVED, meant)


def candidates_for(rpc: Rpc, written: str) -> list[str]:
    """The full names that are looked for, in order (spec §8.3(1))."""
    if written.startswith("."):
        return [written[1:]]
    package = rpc.name.package
    inside = f"{package}.{written}" if package else written
    return [written, inside] if "." in written else [inside]
