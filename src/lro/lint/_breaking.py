"""Compare the long-running methods of two releases (spec §8.5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from lro.lint._descriptors import DescriptorSet, MethodDescriptor, Resolution, resolve
from lro.lint._lint import BREAKING_CODES, SEVERITIES, Allowances, Breaking, Finding, in_order


def renumbered(old: DescriptorSet, new: DescriptorSet, messages: Iterable[str]) -> Iterator[str]:
    """Yield a text for each changed field number in these messages or their fields' messages.

    Fields are compared by name. Fields and messages in only one of the sets are ignored.
    """
    for message in _within(old, messages):
        was, now = old.fields(message), new.fields(message)
        for name, (number, _) in was.items():
            if name in now and now[name][0] != number:
                yield f"{message}.{name} was number {number} and is {now[name][0]}"


def _newly_required(old: DescriptorSet, new: DescriptorSet, request: str) -> Iterator[str]:
    """Yield each field that became required in this message or its fields' messages."""
    for message in _within(old, [request]):
        if old.homes(message):
            before = old.required(message)
            yield from (f"{message}.{one}" for one in new.required(message) if one not in before)


def _within(files: DescriptorSet, messages: Iterable[str]) -> Iterator[str]:
    """Yield these messages and those of their fields, each once."""
    waiting = list(dict.fromkeys(messages))
    seen = set(waiting)
    while waiting:
        message = waiting.pop(0)
        yield message
        for _, nested in files.fields(message).values():
            if nested and nested not in seen:
                seen.add(nested)
                waiting.append(nested)


def breaking(
    old: bytes,
    new: bytes,
    *,
    old_targets: Collection[str] | None = None,
    new_targets: Collection[str] | None = None,
    allow: Collection[str] = (),
) -> list[Breaking | Finding]:
    """Find changes from ``old`` to ``new`` that break callers of long-running methods (spec §8.5).

    Types are compared by full name, so a different spelling of a type is not a change. In addition
    to spec §8.5, a changed field number in a method's messages is a finding,
    ``field-number-changed``, and so is a field of a request that became required,
    ``field-became-required``. ``old_targets`` and ``new_targets`` are the files to compare, by
    default all files that declare a service; ``allow`` is as for :func:`lro.lint.lint`.

    Returns:
        The findings, sorted by method, then code: :class:`Breaking`, and a :class:`Finding` for
        each unused entry of ``allow``. Line numbers are those of the new set, or of the old set for
        removed methods.

    Raises:
        InvalidArgument: A set cannot be read, a target is not in its set, or an entry of ``allow``
            is malformed.
    """
    return compare(
        DescriptorSet(old, "old"),
        DescriptorSet(new, "new"),
        old_targets=old_targets,
        new_targets=new_targets,
        allow=allow,
    )


def compare(
    old: DescriptorSet,
    new: DescriptorSet,
    *,
    old_targets: Collection[str] | None = None,
    new_targets: Collection[str] | None = None,
    allow: Collection[str] = (),
) -> list[Breaking | Finding]:
    """Compare two parsed sets; see :func:`breaking`."""
    allowances = Allowances(allow, BREAKING_CODES)
    remaining = {str(rpc.name): rpc for rpc in new.rpcs("new_targets", new_targets)}
    found: list[Breaking] = []
    for was in old.rpcs("old_targets", old_targets):
        now = remaining.get(str(was.name))
        if now is not None:
            found += _Pair(old, new, was, now).findings()
        elif was.returns_operation:
            found.append(_gone(old, was))
    return sorted(allowances.apply(found), key=in_order)


def _gone(old: DescriptorSet, was: MethodDescriptor) -> Breaking:
    line, column = old.place(was)
    return Breaking(
        method=str(was.name),
        code="method-removed",
        severity=SEVERITIES["method-removed"],
        message="returned operations, and is not in the new set; keep it, under this name",
        file=was.file,
        line=line,
        column=column,
    )


@attrs.frozen
class _Pair:
    old: DescriptorSet
    new: DescriptorSet
    was: MethodDescriptor
    now: MethodDescriptor

    def findings(self) -> Iterator[Breaking]:
        was, now = self.was, self.now
        if was.returns_operation != now.returns_operation:
            message = f"returned {was.output}, now returns {now.output}; add a new method instead"
            yield self._finding("return-type-changed", message)
        elif was.returns_operation:
            yield from self._types()
            yield from self._numbers()
            yield from self._required()

    def _types(self) -> Iterator[Breaking]:
        if self.was.info is None:
            return
        if self.now.info is None:
            message = "had the option google.longrunning.operation_info; declare it again"
            yield self._finding("operation-info-removed", message)
            return
        for field, before, after in self._declared():
            was, now = before.compared, after.compared
            if was and was != now:
                message = f"{field} was {was} and is {now or 'missing'}; keep {was}"
                code = f"{field.replace('_', '-')}-changed"
                yield self._finding(code, message, old=was, new=now)

    def _declared(self) -> Iterator[tuple[str, Resolution, Resolution]]:
        was, now = self.was.info, self.now.info
        if was is not None and now is not None:
            for field in ("response_type", "metadata_type"):
                before = resolve(self.old, self.was, getattr(was, field))
                yield field, before, resolve(self.new, self.now, getattr(now, field))

    def _numbers(self) -> Iterator[Breaking]:
        changes = list(renumbered(self.old, self.new, self._shared()))
        if changes:
            message = f"{', '.join(changes)}; give them their old numbers"
            yield self._finding("field-number-changed", message)

    def _required(self) -> Iterator[Breaking]:
        request = self.was.request
        if request != self.now.request:
            return
        if fields := list(_newly_required(self.old, self.new, request)):
            message = f"{', '.join(fields)} became required: stored requests lack it; give it a"
            yield self._finding("field-became-required", f"{message} default")

    def _shared(self) -> list[str]:
        pairs = [(self.was.request, self.now.request)]
        pairs += [(before.resolved, after.resolved) for _, before, after in self._declared()]
        return [before for before, after in pairs if before and before == after]

    def _finding(
        self, code: str, message: str, *, old: str | None = None, new: str | None = None
    ) -> Breaking:
        line, column = self.new.place(self.now)
        return Breaking(
            method=str(self.now.name),
            code=code,
            severity=SEVERITIES[code],
            message=message,
            file=self.now.file,
            line=line,
            column=column,
            old=old,
            new=new,
        )
