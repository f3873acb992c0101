"""How the project is tested, checked and built: ``nox --list``, or ``python3 run.py NAME``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.version import Version

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
FREE_THREADED = ["3.14t"]
"""CPython without the GIL, of which cryptography supports no older version."""
NOT_FREE_THREADED = {"google-cloud-redis", "grpcio", "grpcio-tools"}
"""What tests need that has no wheels for CPython without the GIL, and what depends on that."""
PYTEST = [
    "pytest",
    *("-o", "faulthandler_timeout=900"),
    *("-o", "faulthandler_exit_on_timeout=true"),
]
"""What takes so many seconds hangs: its process shows where each thread is, and ends."""
AT_ONCE = [*PYTEST, "--numprocesses=3", "--dist=worksteal"]
"""More than the two processors that most machines have at least, since tests wait for servers;
each more collects all tests again."""
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": None}
"""Tests start hundreds of processes, which would compile every module again without bytecode."""
FRAMEWORKS = ["django", "fastapi", "flask", "litestar", "quart", "starlette"]
"""The extras of lro.integrations."""
BRIDGES = ["a2a", "mcp"]
"""The extras of bridges that have tests of their own, in the folder of tests/full of that name."""
WITH_EXTRAS = (
    f".[a2a,aiohttp,celery,cli,fast,{','.join(FRAMEWORKS)},google,grpc,mcp,postgres,"
    "progress,protobuf,schedules"
)
OLD_FRAMEWORKS_NEED = ["sniffio"]
"""What old frameworks import that newer versions of their dependencies no longer bring along."""
OLD_WARNINGS = ["-W", "ignore::DeprecationWarning", "-W", "ignore::ResourceWarning"]
"""Old frameworks use what is deprecated by now, and leave streams of anyio open in tests."""
OLD_HTTPX = ["-W", "ignore:unclosed:ResourceWarning"]
"""With old versions beneath it, httpx leaves connections open whose call is cancelled early."""
PROTOBUF = ["google-api-core", "googleapis-common-protos", "grpcio", "grpcio-tools", "protobuf"]
"""What tests of the wires need, and the library only for its extras."""
WITHOUT_SERVICES = ENVIRONMENT | {"LRO_REQUIRE_SERVICES": ""}
TYPESCRIPT = "typescript@5.9.3"
CHECK_SCRIPTS = [
    *("tsc", "--noEmit", "--strict", "--allowJs", "--checkJs"),
    *("--target", "es2023", "--module", "es2022", "--lib", "es2023,dom,dom.iterable"),
]
"""The scripts are sent as they are written: types stand in comments, and are only checked."""
FULL = ["--numprocesses=4", "-o", "norecursedirs=.*"]
"""The default tier, and the tests that need more time, or more than Python.

Many of these wait, so that there are more processes: pytest takes the last number."""
EXACT = ",".join(f"*/lro/_{one}/*" for one in ("model", "messages", "http", "filters"))
COVERAGE = {100: [f"--include={EXACT}"], 95: [f"--omit={EXACT}"]}
"""The percentage of lines and branches that the tests reach at least, and in which modules."""
CORE = ["tests", "--ignore=tests/test_docs.py"]
"""The tests that need no extra; the few that want one skip themselves."""


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The default tier: needs only Python, and takes a few minutes."""
    session.install("-e", f"{WITH_EXTRAS}]", *group("docs", "test"))
    session.run(*AT_ONCE, *chosen(session), env=ENVIRONMENT)


@nox.session(name="tests-full")
def tests_full(session: nox.Session) -> None:
    """Every test: also browsers, other people's judges, killed processes, Celery, the examples."""
    session.install(*everything())
    session.run("python", "-m", "tests.services.npm")
    session.run(*AT_ONCE, *FULL, *chosen(session), env=ENVIRONMENT)
    if "--cov" in session.posargs:
        for percent, modules in COVERAGE.items():
            command = ["coverage", "report", f"--fail-under={percent}", *modules]
            session.run(*command)


@nox.session(python=PYTHONS)
def core(session: nox.Session) -> None:
    """The wheel as it is built, with no optional package in reach."""
    session.install(".")
    session.run("python", "-c", "import lro, lro_client")
    session.install(".", *group("test"))
    session.run("pip", "uninstall", "--quiet", "--yes", *PROTOBUF)
    session.run(*AT_ONCE, *CORE, *session.posargs, env=WITHOUT_SERVICES)


@nox.session(python=FREE_THREADED)
def free_threaded(session: nox.Session) -> None:
    """The tests of ``core`` on each installed CPython without the GIL, which stays off."""
    wanted = [one for one in group("test") if Requirement(one).name not in NOT_FREE_THREADED]
    session.install("-e", ".", *wanted)
    command = [*AT_ONCE, *CORE, *session.posargs]
    session.run(*command, env=WITHOUT_SERVICES | {"PYTHON_GIL": "0"})


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """The lowest versions that pyproject.toml allows."""
    constraints = hold_down(session, [*PROJECT["dependencies"], *group("test")])
    session.install("-e", ".", *group("test"), *constraints)
    old = ["--ignore=tests/integrations"]  # the session frameworks has these
    command = [*AT_ONCE, *OLD_HTTPX, *CORE, *old, *session.posargs]
    session.run(*command, env=WITHOUT_SERVICES)


@nox.session(python="3.11")
def frameworks(session: nox.Session) -> None:
    """The integrations with the lowest versions of the frameworks that pyproject.toml allows."""
    constraints = hold_down(session, [one for extra in FRAMEWORKS for one in EXTRAS[extra]])
    session.install("-e", f".[{','.join(FRAMEWORKS)}]", *constraints)
    session.install(*OLD_FRAMEWORKS_NEED, *group("test"), *constraints)
    folders = ["tests/integrations", "tests/full/integrations"]
    command = [*AT_ONCE, *FULL, *OLD_WARNINGS, *folders, *session.posargs]
    session.run(*command, env=WITHOUT_SERVICES)


@nox.session(python="3.11")
def bridges(session: nox.Session) -> None:
    """The bridges to other protocols with the lowest SDKs that pyproject.toml allows."""
    constraints = hold_down(session, [one for extra in BRIDGES for one in EXTRAS[extra]])
    wheel = f".[{','.join(BRIDGES)}]"
    session.install("-e", wheel, *group("test"), *constraints)
    folders = [f"tests/full/{bridge}" for bridge in BRIDGES]
    session.run(*AT_ONCE, *FULL, *folders, *session.posargs, env=WITHOUT_SERVICES)


@nox.session
def lint(session: nox.Session) -> None:
    """The rules and the layout of the code, and the types of the console's scripts.

    ``-- --fix`` mends what ruff can.
    """
    session.install(*group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]))
    if shutil.which("npx") is None:
        said = "the types of the console's scripts are not checked: npx is not installed"
        (session.error if os.environ.get("LRO_REQUIRE_SERVICES") else session.warn)(said)
        return
    for scripts in ("console.js/*.js", "*/*.js"):  # the second are loaded after the first
        files = map(str, sorted(Path("src/lro/_console/assets").glob(scripts)))
        session.run(
            "npx", "--yes", f"--package={TYPESCRIPT}", *CHECK_SCRIPTS, *files, external=True
        )


@nox.session
def types(session: nox.Session) -> None:
    """Both type checkers, over the library, the examples, the typing tests and the docs."""
    session.install(*everything(), *group("types"))
    session.run("mypy")
    session.run("pyright")
    session.run("python", "-m", "tests.docs_types")


@nox.session
def docs(session: nox.Session) -> None:
    """The code, links and claims of the README and the docs."""
    session.install(*everything())
    session.run(*PYTEST, "tests/test_docs.py", *session.posargs)


@nox.session
def site(session: nox.Session) -> None:
    """The docs as a web site, in ``site/``; ``-- --serve`` shows it on this machine."""
    session.install(*group("site"))
    command = ["python", "-m", "tools.site", *session.posargs]
    session.run(*command, interrupt_timeout=30)  # Ctrl-C leaves it the time to stop its server


@nox.session
def examples(session: nox.Session) -> None:
    """The tests of the examples, and whether their command starts."""
    session.install(*everything())
    session.run(*AT_ONCE, *FULL, "tests/full/examples", *session.posargs)
    session.run("python", "-m", "examples.analysis", "--help")


@nox.session
def demo(session: nox.Session) -> None:
    """The reference server, and a client that drives it; ``-- --open`` shows its demo page."""
    session.install("-e", ".[examples,fast]")
    command = ["python", "-m", "examples.analysis", "demo", *session.posargs]
    session.run(*command, interrupt_timeout=30)  # Ctrl-C leaves it the time to stop its server


@nox.session
def chaos(session: nox.Session) -> None:
    """The long form of the proofs: kills, freezes, outages, races; about an hour, with counts.

    ``-- kill --seeds 5 --stores sqlite`` runs one of them.
    """
    session.install(*everything())
    if session.posargs:
        session.run("python", "-m", "tests.chaos", *session.posargs)
        return
    for command in (
        "kill --minutes 30",
        "fence --minutes 10",
        "store",
        "locks",
        "loops",
        "webhooks",
    ):
        session.run("python", "-m", "tests.chaos", *command.split())
    for command in ("ids", "cancel", "wait", "records"):
        session.run("python", "-m", "tests.full.across", command)
    session.run("python", "-m", "tests.client.schedules", "--count", "20000")
    session.run("python", "-m", "tests.client.stress", "--seconds", "60")


@nox.session
def bench(session: nox.Session) -> None:
    """The figures, ours beside their floors and peers."""
    session.install("-e", ".[fast,postgres]", *group("bench", "browser"))
    session.run("python", "-m", "bench", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """What a release must pass, on files built for that; ``-- --keep dist`` keeps the files."""
    session.install(*group("release"))
    session.run(*PYTEST, "tools/release", *session.posargs)


@nox.session
def changelog(session: nox.Session) -> None:
    """Move the fragments into CHANGELOG.md: ``-- --version 1.2.0``, or ``-- --draft`` to look."""
    session.install("towncrier>=24.8")
    session.run("towncrier", "build", "--yes", *session.posargs)


def chosen(session: nox.Session) -> list[str]:
    """The arguments for pytest, which runs in one process where they name a module.

    That starts at once, and says which name is wrong.
    """
    for argument in session.posargs:
        if argument.startswith("tests/") and not Path(argument.partition("::")[0]).exists():
            session.error(f"{argument}: there is no such file or folder")
    few = any(".py" in argument for argument in session.posargs)
    return [*(["--numprocesses=0"] if few else []), *session.posargs]


def everything() -> list[str]:
    """What pip installs for all tests: the project in place, its extras, and what tests need."""
    return ["-e", f"{WITH_EXTRAS},examples]", *group("browser", "docs", "judges", "site", "test")]


def group(*names: str) -> list[str]:
    """The requirements of dependency groups of pyproject.toml, each once."""
    return list(dict.fromkeys(nox.project.dependency_groups(PYPROJECT, *names)))


def hold_down(session: nox.Session, wanted: list[str]) -> list[str]:
    """Arguments for pip that hold requirements at their lowest versions."""
    constraints = Path(session.create_tmp()) / "lowest.txt"
    constraints.write_text("\n".join(map(as_lowest, wanted)) + "\n")
    return ["--constraint", str(constraints)]


def as_lowest(text: str) -> str:
    """A requirement held down: ``name>=1.2,!=1.3`` as ``name==1.2``."""
    requirement = Requirement(text)
    bounds = [s.version for s in requirement.specifier if s.operator in {">=", "~=", "=="}]
    return f"{requirement.name}=={min(bounds, key=Version)}"
