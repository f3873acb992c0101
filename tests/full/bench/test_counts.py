"""The counts of calls, objects, statements and bytes do not grow unnoticed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "bench" / "figures.json"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def named(path: Path) -> list[tuple[str, str]]:
    """Return the names of the counts in a file."""
    return [(row["what"], row["measure"]) for row in json.loads(path.read_text())["counts"]["rows"]]


def test_counts_are_at_most_a_twentieth_above_those_that_are_kept(tmp_path: Path) -> None:
    new = tmp_path / "new.json"
    ended = bench("counts", "--compare", str(KEPT), "--json", str(new))
    assert ended.returncode == 0, ended.stderr
    if "not measured: statements on PostgreSQL" in ended.stdout:
        pytest.skip("PostgreSQL is not installed")
    assert new.exists(), ended.stdout
    assert named(new) == named(KEPT), ended.stdout


def doctored(folder: Path, factor: float) -> Path:
    """Write the kept counts, with one of them changed by this factor."""
    kept = json.loads(KEPT.read_text())
    row = kept["counts"]["rows"][0]
    row["ours"] = row["ours"] * factor
    path = folder / "old.json"
    path.write_text(json.dumps(kept))
    return path


@pytest.mark.parametrize(("factor", "status"), [(0.94, 1), (0.97, 0), (1.5, 0)])
def test_a_comparison_fails_if_a_count_has_grown_by_more_than_a_twentieth(
    tmp_path: Path, factor: float, status: int
) -> None:
    ended = bench("counts", "--compare", str(doctored(tmp_path, factor)), "--with", str(KEPT))
    assert ended.returncode == status, ended.stderr
    if status:
        row = json.loads(KEPT.read_text())["counts"]["rows"][0]
        assert "counts.start_that_waits_for_its_commit_sqlite.objects has grown" in ended.stderr
        assert f"to {row['ours']} objects" in ended.stderr
        assert "python3 run.py bench -- counts --save" in ended.stderr
