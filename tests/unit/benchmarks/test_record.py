"""Records of a benchmark: the output of each checkout's own code, one checkout after the other."""

import subprocess
from datetime import date

from benchmarks.record import in_turns, printed


def checkout(folder, says):
    """Return a repository whose benchmark `said` prints the text of a module in it, and how often it has run."""
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "__init__.py").write_text("")
    (folder / "shared").mkdir()
    (folder / "shared" / "__init__.py").write_text(f"SAYS = {says!r}")
    (folder / "benchmarks" / "said.py").write_text(
        "from pathlib import Path\n"
        "import shared\n"
        "runs = Path(__file__).with_name('runs')\n"
        "runs.touch()\n"
        "runs.write_text(runs.read_text() + 'x')\n"
        "print(shared.SAYS, len(runs.read_text()), '  ')\n"
    )
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, "commit", "--quiet", "--allow-empty", "-m", "t"], cwd=folder, check=True)
    return folder


def test_a_benchmark_prints_the_output_of_its_checkout(tmp_path):
    assert printed("said", checkout(tmp_path / "other", says="theirs")) == "theirs 1"


def test_two_checkouts_take_turns_and_the_other_is_named_by_its_commit(tmp_path, monkeypatch):
    ours, theirs = checkout(tmp_path / "ours", says="ours"), checkout(tmp_path / "theirs", says="theirs")
    monkeypatch.setattr("benchmarks.record.HERE", ours)
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=theirs, text=True).strip()
    text = in_turns("said", date(2026, 11, 23), theirs)
    said = [line for line in text.splitlines() if line and not line.startswith(("`", "Now", "Before"))]
    assert said == ["ours 1", "theirs 1", "ours 2", "theirs 2"]
    assert text.count(f"Before, {commit}:") == 2
