"""Commands in ``console`` blocks of the README and the docs have arguments that exist.

A command of ours, of Python and of a server is parsed with its own parser. Other commands are
compared with a table of words. A command that needs no server or service is also run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.page_texts import PAGES, ROOT, blocks

if TYPE_CHECKING:
    import click

click = pytest.importorskip("click")
pytest.importorskip("markdown_it")

PROMPT: Final = "$ "
INSIDE: Final = re.compile(r"\$\(([^()]+)\)")
"""A command whose output another command uses."""
SETTING: Final = re.compile(r"[A-Z_]+=")
EXTRAS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
VERBS: Final = re.compile(r"/v1/operations(?:/[\w-]+)?(?::\w+)?")
WORDS: Final[Mapping[str, Sequence[str]]] = {
    ".": (),
    "buf": ("breaking", "--against"),
    "cd": (),
    "docker": (
        *("build", "buildx", "run", "--tag", "--rm", "--read-only", "--volume", "--publish"),
        *("--stop-timeout", "--sbom=true", "--provenance=mode=max", "--push"),
    ),
    "find": ("-name",),
    "gcloud": ("auth", "print-access-token"),
    "kill": ("-9",),
    "kubectl": ("apply", "delete", "get", "logs", "rollout", "status", "-f"),
    "npm": ("install",),
    "npx": (),
    "openapi-python-client": ("generate", "--path"),
    "protoc": (
        *("-I", "--include_imports", "--include_source_info"),
        "--descriptor_set_out=api.binpb",
    ),
    "psql": ("-d", "-c"),
    "sqlite3": (),
    "pytest": (),
    "uv": ("add", "pip", "venv"),
    "wait": (),
}
"""Commands that are not compared with their parser; their options are among these words."""


def commands_of(text: str) -> Iterator[str]:
    """Yield the commands after the prompts in a block; a quoted word may have several lines."""
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        if not line.startswith(PROMPT):
            continue
        command = line.removeprefix(PROMPT)
        while not closed(command):
            command += f"\n{next(lines)}"
        yield command


def closed(command: str) -> bool:
    """Return whether each quote of a command is closed."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def simple(command: str) -> Iterator[list[str]]:
    """Yield the words of each simple command: pipes, lists and redirections are taken apart."""
    for found in INSIDE.findall(command):
        yield from simple(found)
    lexer = shlex.shlex(INSIDE.sub("inside", command), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;"):
            found, words = words, []
            yield unset(found)
        else:
            words.append(word)
    if words:
        yield unset(words)


def unset(words: Sequence[str]) -> list[str]:
    """Return a command without variables before it and redirections behind it."""
    plain = itertools.takewhile(lambda word: not set(word) <= set("<>"), words)
    return list(itertools.dropwhile(SETTING.match, plain))


def lro_app() -> Any:
    """Return the command ``lro``."""
    from lro.cli._app import app

    return app


def parse_lro(words: Sequence[str]) -> None:
    """Parse a command of ``lro``; the modules and files in it need not exist."""
    given = list(words)
    if given[:1] == ["conform"] and given[1:2] != ["client"]:
        given.insert(1, "server")  # which may be left out
    parse_click(lro_app(), "lro", given)


def parse_click(command: Any, name: str, words: Sequence[str]) -> None:
    """Parse a command of a program that click has made, down to its last subcommand."""
    rest = list(words)
    context = click.Context(command, info_name=name, **command.context_settings)
    while isinstance(command, click.Group):
        rest = command.make_parser(context).parse_args(rest)[1]
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None, rest
        command = found
        context = click.Context(command, parent=context)
    values, rest, _ = command.make_parser(context).parse_args(rest)
    assert rest == [] or context.allow_extra_args, f"too many arguments: {rest}"
    for parameter in command.params:
        given = values.get(parameter.name)
        absent = not isinstance(given, str | tuple | list)
        missing = parameter.required and absent and not parameter.envvar
        assert not missing, f"needs {parameter.name}"
        if isinstance(parameter.type, click.Choice | click.types.IntParamType) and given:
            parameter.type_cast_value(context, given)


def parse_python(words: Sequence[str]) -> None:
    """Check a command of Python: code is compiled, a module of ``-m`` exists."""
    if words[:1] == ["-c"]:
        compile(words[1], "command", "exec")
    elif words[:1] == ["-m"]:
        name, rest = words[1], list(words[2:])
        assert importlib.util.find_spec(name), f"no module {name}"
        if name == "tests.chaos":
            parse_chaos(rest)
    elif words[:1] == ["run.py"]:
        parse_session(words[1:])


def parse_chaos(words: Sequence[str]) -> None:
    """Check the kind of a campaign, and that it has the options."""
    from tests.chaos import __main__ as chaos

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        parsed: list[argparse.Namespace] = []

        def end(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
            rest: list[str] = []
            namespace, rest = parser.parse_known_args(given)
            assert not rest, rest
            parsed.append(namespace)
            raise Parsed

        patch.setattr(argparse.ArgumentParser, "parse_args", end)
        stack.enter_context(pytest.raises(Parsed))
        chaos.main(words)


class Parsed(Exception):
    """Raised in place of the run of a program whose arguments have been parsed."""


def parse_session(words: Sequence[str]) -> None:
    """Check the benches that ``run.py bench`` names; another test checks the sessions."""
    from bench.__main__ import PARSER, chosen

    if words[:2] == ["bench", "--"]:
        names = list(itertools.takewhile(lambda word: not word.startswith("-"), words[2:]))
        chosen(names)
        options = list(words[2 + len(names) :])
        if len(names) > 1 or not names:
            assert PARSER.parse_known_args(options)[1] == []


def parse_pip(words: Sequence[str]) -> None:
    """Check that the extras in an installation exist."""
    assert words[0] in {"install", "-e"}, words
    named = re.findall(r"(?:\blro|\.)\[([\w,]+)\]", " ".join(words))
    assert set(",".join(named).split(",")) - {""} <= EXTRAS.keys(), named


def parse_uv(words: Sequence[str]) -> None:
    """Check the verb, and the extras as those of pip."""
    assert words[0] in WORDS["uv"], words
    parse_pip(["install", *words[1:]])


def parse_gunicorn(words: Sequence[str]) -> None:
    config = pytest.importorskip("gunicorn.config")
    given = config.Config().parser().parse_args(words)
    assert len(given.args) == 1, given.args


def parse_hypercorn(words: Sequence[str]) -> None:
    main = pytest.importorskip("hypercorn.__main__")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "run", lambda config: 0)
        main.main(list(words))


def parse_uvicorn(words: Sequence[str]) -> None:
    parse_click(pytest.importorskip("uvicorn.main").main, "uvicorn", words)


def parse_celery(words: Sequence[str]) -> None:
    parse_click(pytest.importorskip("celery.bin.celery").celery, "celery", words)


def parse_procrastinate(words: Sequence[str]) -> None:
    cli = pytest.importorskip("procrastinate.cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "load_app", str)
        cli.parse_args(list(words))


def parse_export(words: Sequence[str]) -> None:
    assert all(SETTING.match(word) for word in words), words


CURL: Final = argparse.ArgumentParser("curl")
CURL.add_argument("url")
CURL.add_argument("-H", "--header", action="append")
for option in ("-i", "-N", "-s", "--fail"):
    CURL.add_argument(option, action="store_true")
for option in ("-d", "-X", "-o", "-u", "--json"):
    CURL.add_argument(option)


def parse_curl(words: Sequence[str], page: Path) -> None:
    """Check the options, and that the path is one of our routes or is declared on the page."""
    url = CURL.parse_args(words).url
    path = re.sub(r"^(?:https?://)?[^/]*|\?.*$", "", url)
    declared = re.findall(r"[\"'](/[\w:/.{}-]+)[\"']", page.read_text(encoding="utf-8"))
    assert VERBS.fullmatch(path) or path in declared, f"no route {path}"


PARSERS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "celery": parse_celery,
    "export": parse_export,
    "gunicorn": parse_gunicorn,
    "hypercorn": parse_hypercorn,
    "lro": parse_lro,
    "pip": parse_pip,
    "procrastinate": parse_procrastinate,
    "python": parse_python,
    "python3": parse_python,
    "uv": parse_uv,
    "uvicorn": parse_uvicorn,
}


def check(words: Sequence[str], page: Path) -> None:
    """Check the words of a simple command.

    Raises:
        BaseException: The command would be refused; the parsers have errors of their own.
    """
    path, *rest = words
    name = path.rpartition("/")[2]
    if name == "eval":
        assert rest == ["inside"], rest
    elif name == "curl":
        parse_curl(rest, page)
    elif name in PARSERS:
        PARSERS[name](rest)
    else:
        assert name in WORDS, f"no parser for {name}"
        own = itertools.takewhile(lambda word: not word.startswith("lro-"), rest)  # of an image
        wrong = {word for word in own if word.startswith("-")} - set(WORDS[name])
        assert not wrong, wrong


def fault(command: str, page: Path) -> str:
    """Return why a command would be refused, or nothing."""
    for words in simple(command):
        try:
            check(words, page)
        except pytest.skip.Exception:
            continue  # a program that is not installed here
        except (Exception, SystemExit, StopIteration) as exc:
            return f"{type(exc).__name__}: {exc}"
    return ""


SHOWN: Final = [page for page in PAGES if any(one.language == "console" for one in blocks(page))]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_arguments_of_the_commands_of_a_page_are_accepted(page: Path) -> None:
    """Each command in a ``console`` block has subcommands, options and extras that exist."""
    wrong = {
        command: said
        for block in blocks(page)
        if block.language == "console"
        for command in commands_of(block.text)
        if (said := fault(command, page))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "command",
    [
        "lro console http://localhost:8000",
        "lro console --server http://localhost:8000 more",
        "lro console --sever http://localhost:8000",
        "lro consle --server http://localhost:8000",
        "lro start",
        "lro list --limit many",
        "lro lint a.binpb | lro nothing",
        "python -c 'import lro)'",
        "python -m no_such_module",
        "python3 run.py bench -- no_such_bench",
        "python -m tests.chaos kill --no-such-option 1",
        "pip install '.[no_such_extra]'",
        "uv pip install 'lro[no_such_extra]'",
        "curl localhost:8000/v1/no/such/path",
        "curl --no-such-option localhost:8000/v1/operations",
        "uvicorn work:app --no-such-option 5",
        "gunicorn work:app --no-such-option 5",
        "hypercorn work:app --no-such-option 5",
        "celery -A work wrker",
        "psql --no-such-option",
        "no_such_program",
    ],
)
def test_command_with_a_wrong_argument_is_found(command: str) -> None:
    assert fault(command, PAGES[0])


def test_completion_scripts_are_printed_by_the_commands_of_the_page() -> None:
    """The commands on completion are run: each prints a script for its shell."""
    from click.testing import CliRunner

    text = (ROOT / "docs/how-to/command-line.md").read_text(encoding="utf-8")
    shells = re.findall(r"lro completion (\w+)", text)
    assert {"bash", "zsh", "fish"} <= {*shells}
    for shell in shells:
        ran = CliRunner().invoke(lro_app(), ["completion", shell], prog_name="lro")
        assert ran.exit_code == 0
        assert "lro" in ran.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shell_scripts_of_a_page_have_correct_syntax(page: Path) -> None:
    """A shell accepts the ``bash`` and ``sh`` blocks of a page."""
    for block in blocks(page):
        if block.language in {"bash", "sh"}:
            shell = [block.language, "-n"]
            assert subprocess.run(shell, input=block.text, text=True, check=False).returncode == 0
