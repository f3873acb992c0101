"""Field numbers that moved: the binary form of old callers is then read as something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lro.lint._descriptors import DescriptorSet


def renumbered(old: DescriptorSet, new: DescriptorSet, messages: Iterable[str]) -> Iterator[str]:
    """What changed in these messages and in those of their fields, as text for a finding.

    A field is known by its name. One that was added or removed is no change of a number; that is
    not this rule's concern, and nor is a message that only one of the sets has.
    """
    waiting = list(dict.fromkeys(messages))
    seen = set(waiting)
    while waiting:
        message = waiting.pop(0)
        was, now = old.fields(message), new.fields(message)
        for name, (number, nested) in was.items():
            if name in now and now[name][0] != number:
                yield f"{message}.{name} was number {number} and is {now[name][0]}"
            if nested and nested not in seen:
                seen.add(nested)
                waiting.append(nested)
