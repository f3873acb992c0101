"""The linter's reference page: each example compiles and has exactly the finding it shows."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("grpc_tools")

from grpc_tools import protoc

from lro.lint import BREAKING_CODES, LINT_CODES, breaking, lint
from tests.googleapis import write_googleapis

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs/reference/linter.md").read_text(
    encoding="utf-8"
)
BLOCK: Final = re.compile(r"```proto\n(.*?)```", re.DOTALL)
FRAME: Final = BLOCK.findall(PAGE)[0]
SECTIONS: Final = {
    heading: BLOCK.findall(text)
    for heading, text in re.findall(r"^### ([a-z-]+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.M)
}
NAME: Final = "library.proto"


@pytest.fixture(scope="session")
def imports(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the compiler options that set the import paths of Google's files."""
    own = importlib.resources.files("grpc_tools") / "_proto"
    return [write_googleapis(tmp_path_factory.mktemp("protos")), f"-I{own}"]


def compiled(example: str, folder: Path, imports: list[str]) -> bytes:
    """Insert an example into the page's frame, compile it, and return the descriptor set."""
    lines = example.splitlines()
    messages = "\n".join(line for line in lines if line.startswith("message "))
    methods = "\n".join(line for line in lines if not line.startswith("message "))
    source = FRAME.replace("service Library", f"{messages}\nservice Library")
    (folder / NAME).write_text(source.replace("  // The example.", methods), encoding="utf-8")
    made = folder / "made.binpb"
    options = ["--include_imports", "--include_source_info", f"--descriptor_set_out={made}"]
    assert protoc.main(["protoc", f"-I{folder}", *imports, *options, NAME]) == 0
    return made.read_bytes()


def test_every_code_has_a_section() -> None:
    """Each code of the linter has a section, and each section documents a code."""
    assert set(SECTIONS) == {*LINT_CODES, *BREAKING_CODES}
    assert [one for one in SECTIONS if one in LINT_CODES] == list(SECTIONS)[: len(LINT_CODES)]


@pytest.mark.parametrize("code", LINT_CODES)
def test_corrected_lint_example_of_the_page_has_no_finding(
    code: str, tmp_path: Path, imports: list[str]
) -> None:
    """A section's wrong example has only the section's finding; corrected examples have none."""
    wrong, *mended = SECTIONS[code]
    (found,) = lint(compiled(wrong, tmp_path, imports), targets=[NAME])
    assert (found.code, found.file, found.line) == (code, NAME, FRAME.count("\n"))
    for example in mended:
        assert lint(compiled(example, tmp_path, imports)) == []


@pytest.mark.parametrize("code", BREAKING_CODES)
def test_breaking_example_of_the_page_has_only_its_finding(
    code: str, tmp_path: Path, imports: list[str]
) -> None:
    """The change from the first half of an example to the second half has only one finding."""
    (example,) = SECTIONS[code]
    _, before, after = re.split(r"^// (?:before|after)\n", example, flags=re.M)
    old, new = compiled(before, tmp_path, imports), compiled(after, tmp_path, imports)
    assert [one.code for one in breaking(old, new)] == [code]
    assert breaking(old, old) == []
