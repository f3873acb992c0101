"""Set the project up and run one of its sessions: ``python3 run.py NAME [-- ARGS]``.

Needs Python 3.11 or newer and nothing else: it makes ``.venv`` with nox in it, and nox makes the
environment that the session runs in. ``noxfile.py`` has the sessions.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# Nothing in this file is newer than Python 3.6 can read, so that an old one gets to this sentence.
if sys.version_info < (3, 11):  # noqa: UP036 - this line is what checks the version
    sys.exit(f"run.py: needs Python 3.11 or newer, this is {sys.version.split()[0]}")

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
NOX = "nox>=2025.2.9"
USAGE = """usage: python3 run.py NAME [-- ARGS]

  demo      the reference server and a client that drives it; -- --open shows its page
  tests     the default tier of the tests; -- ARGS are those of pytest
  tests-full  every test, with browsers, brokers and the tools of others
  lint      the rules and the layout of the code
  types     both type checkers
  docs      the code, links and claims of the pages
  site      the docs as a web site, in site/; -- --serve shows it on this machine
  examples  the tests of the examples

NAME may be any other session of noxfile.py too: after the first run,
`.venv/bin/python -m nox --list` shows them."""


class SetupError(Exception):
    """Why the set-up cannot go on, in one sentence."""


def works(*command: object, cwd: Path = ROOT) -> bool:
    """Whether a command exists and succeeds; nothing that it prints is shown."""
    try:
        subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def make_venv() -> None:
    """Make ``.venv``, without pip: not every Python has one to put in.

    Raises:
        SetupError: This Python has no venv module, or a broken ``.venv`` is in the way.
    """
    try:
        import venv
    except ImportError:
        raise SetupError("this Python was installed without its venv module") from None
    venv.create(VENV, symlinks=os.name != "nt")
    if not works(PYTHON, "--version"):
        raise SetupError(f"the Python in {VENV} does not run: remove that folder and try again")


def find_pip(folder: Path) -> "list[object]":
    """The command of a pip that installs into ``.venv``; ``folder`` is for what must be fetched.

    Raises:
        SetupError: There is none, and none can be fetched.
    """
    inside = [PYTHON, "-m", "pip"]
    if works(*inside, "--version") or works(PYTHON, "-m", "ensurepip"):
        return inside
    outside = [sys.executable, "-m", "pip", "--python", PYTHON]
    if works(*outside, "--version"):
        return outside
    return [PYTHON, fetch_pip(folder) / "pip"]


def fetch_pip(folder: Path) -> Path:
    """The wheel of pip, which runs unopened, out of the package that Debian and its kin keep it in.

    They are the ones that leave both ensurepip and pip out of Python. Fetching needs no root, and
    the lists of packages are fetched as well, because a fresh machine may have none.

    Raises:
        SetupError: This is no such system, or its packages are out of reach.
    """
    print("run.py: fetching pip, which this Python lacks", flush=True)
    lists, cache = folder / "lists", folder / "cache"
    lists.mkdir()
    cache.mkdir()
    apt = ["apt-get", f"-oDir::State::Lists={lists}", f"-oDir::Cache={cache}"]
    apt += ["-oAPT::Sandbox::User=root"]  # by default root fetches as a user who cannot write here
    if works(*apt, "update") and works(*apt, "download", "python3-pip-whl", cwd=folder):
        for package in folder.glob("*.deb"):
            works("dpkg-deb", "--extract", package, folder)
    wheels = list(folder.glob("usr/share/python-wheels/pip-*.whl"))
    if not wheels:
        raise SetupError("this Python has no ensurepip and no pip, and apt-get gave none")
    return wheels[0]


def prepare() -> None:
    """Make ``.venv`` with nox in it, or finish one that was left half done.

    Raises:
        SetupError: That is not possible here; the sentence says why.
    """
    if not works(PYTHON, "--version"):
        make_venv()
    if works(PYTHON, "-c", "import nox.project; nox.project.dependency_groups"):
        return  # an older nox, of an older checkout, cannot read noxfile.py
    with tempfile.TemporaryDirectory() as folder:
        pip = find_pip(Path(folder))
        print(f"run.py: installing nox into {VENV}", flush=True)
        install = [*map(str, pip), "install", "--quiet", "--disable-pip-version-check", NOX]
        if subprocess.run(install).returncode:
            raise SetupError("pip could not install nox: is the package index within reach?")


def nox(name: str, arguments: "list[str]") -> "list[str]":
    """The command that runs a session; ``tests`` is that of the Python which runs this."""
    if name == "tests":
        name = f"tests-{sys.version_info.major}.{sys.version_info.minor}"
    options = ["--error-on-missing-interpreters"] if name.startswith("tests-") else []
    return [str(PYTHON), "-m", "nox", *options, "--session", name, *arguments]


def left_out() -> str:
    """Say which tests the session ``tests`` has not run."""
    folders = sorted(path.name for path in (ROOT / "tests" / "full").iterdir() if path.is_dir())
    named = ", ".join(name for name in folders if name.isalnum())
    return f"run.py: left out: tests/full ({named}); run them too with: python3 run.py tests-full"


def main(arguments: "list[str]") -> int:
    """Run the session; the exit status is that of nox, 1 if the set-up fails, 2 for a misuse."""
    name, *rest = arguments or ["--help"]
    if name.startswith("-") or rest[:1] not in ([], ["--"]):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        prepare()
    except SetupError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    # Last on the path, for nox to find this very Python where no other of its version is.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches nox too, which ends the session
    status = subprocess.call(nox(name, rest), cwd=ROOT, env={**os.environ, "PATH": path})
    if arguments == ["tests"]:
        print(left_out())
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
