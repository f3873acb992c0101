"""Choose small faults in the source: a turned comparison, a removed statement, another constant."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Fault:
    """One replaced piece of a source file; ``start`` and ``end`` are offsets in its bytes."""

    path: str
    line: int
    start: int
    end: int
    was: str
    now: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        return source[: self.start] + self.now.encode() + source[self.end :]

    def __str__(self) -> str:
        was, now = (" ".join(text.split())[:60] for text in (self.was, self.now))
        return f"{self.path}:{self.line}: {was!r} -> {now!r}"


def choose(src: Path, package: str, count: int) -> list[Fault]:
    """Choose ``count`` faults of a package, the same ones each time for the same source."""
    module = src / f"{package}.py"
    files = [module] if module.exists() else sorted((src / package).rglob("*.py"))
    found = [fault for path in files for fault in faults_in(src, path)]
    chosen = random.Random(package).sample(found, min(count, len(found)))
    return sorted(chosen, key=lambda fault: (fault.path, fault.start))


def faults_in(src: Path, path: Path) -> Iterator[Fault]:
    """Yield each fault that can be put into the functions of a module."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, now in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        was = source[start:end].decode()
        yield Fault(str(path.relative_to(src)), node.lineno, start, end, was, now)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _changed(statement)


def _changed(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the changes of a statement or an expression, and of what is inside."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.JoinedStr():
            return  # the walk comes to functions by itself; positions in f-strings are not exact
        case ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return
        case ast.Compare(ops=[operator]):
            turned = ast.Compare(node.left, [COMPARISONS[type(operator)]()], node.comparators)
            yield node, f"({ast.unparse(turned)})"
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"bool({ast.unparse(node.operand)})"
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()):
            yield node.test, f"(not {ast.unparse(node.test)})"
        case ast.Constant(value=bool()):
            yield node, repr(not node.value)
        case ast.Constant(value=int()):
            yield node, repr(node.value + 1)
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield node, "return None"
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute()]) | ast.Raise():
            yield node, "pass"
        case ast.AugAssign():
            yield node, "pass"
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changed(child)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
