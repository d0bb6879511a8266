"""A run that is stopped at any time, by any signal: all of its result is there, or nothing, and the next one runs."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_folders import Nursery, digests, forsaken, write_job, write_world

FILES = {
    "certificate.json",
    "cleaned.parquet",
    "model.safetensors",
    "posteriors.npz",
    "records.key",
    "report.html",
    "result.json",
}
TURNS = 8
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143}

AT = """
import os, signal
import {module} as place
real = place.{name}
def told(*given, **named):
    if {before}:
        os.kill(os.getpid(), {number})
    found = real(*given, **named)
    os.kill(os.getpid(), {number})
    return found
place.{name} = told
"""
MOVING = """
import os
from pathlib import Path
real, moved = Path.replace, []
def told(self, goal):
    if self.parent.name == ".unfinished" and Path(goal).parent.name != ".unfinished":
        moved.append(self.name)
        if len(moved) > {count}:
            {act}
    return real(self, goal)
Path.replace = told
"""
# The page takes a second, which only the tests of the page itself need.
QUICK = """
import forsaken.report.page
forsaken.report.page.write_report = lambda folder, *_: (folder / "report.html").write_text("page")
"""
STEPS = {
    "reading": ("forsaken.jobs.run", "prepare_job", True),
    "the weights": ("forsaken.jobs.run", "_write_weights", False),
    "judging": ("forsaken.jobs.run", "judge_prepared", False),
    "cleaning": ("forsaken.jobs.run", "clean", False),
    "the result": ("forsaken.jobs.run", "write_posteriors", False),
    "the page": ("forsaken.report.page", "write_report", True),
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "home")
    yield made
    made.close()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(write_world(tmp_path / "job"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def whole(folder: Path) -> bool:
    """Whether the folder holds a whole result, whose certificate speaks of its weights."""
    if names(folder) - {"earlier"} != FILES:
        return False
    told = forsaken(
        "verify", folder / "certificate.json", "--weights", folder / "model.safetensors", "--any-signer", "--json"
    )
    return told.code in (0, 4, 5)  # no check failed, whatever the verdict


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("step", STEPS)
def test_a_signal_at_every_step_leaves_nothing(nursery: Nursery, job: Path, step: str, number: int) -> None:
    module, name, before = STEPS[step]
    files = digests(job.parent)
    first = QUICK + AT.format(module=module, name=name, before=before, number=int(number))
    ended = nursery.run("unlearn", job, first=first)
    assert ended.code == STOPS[signal.Signals(number)]
    assert "interrupted" in ended.err
    assert "Traceback" not in ended.err
    assert not (job.parent / "forgotten").exists()
    assert digests(job.parent) == files


SWALLOWING = """
import os, time
import safetensors
real = safetensors.safe_open
def swallow(*given, **named):
    try:
        os.kill(os.getpid(), {number})
        time.sleep(1)
    except BaseException as error:
        raise RuntimeError("could not determine the shape of object") from error
    return real(*given, **named)
safetensors.safe_open = swallow
"""


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_that_a_library_swallows_is_still_a_signal(nursery: Nursery, job: Path, number: int) -> None:
    """Some libraries turn whatever is raised inside them into an error of their own."""
    ended = nursery.run("unlearn", job, "--json", first=QUICK + SWALLOWING.format(number=int(number)))
    assert ended.code == STOPS[signal.Signals(number)], ended.err
    assert "interrupted" in ended.err
    assert not (job.parent / "forgotten").exists()


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("count", [0, 3, 6])
def test_a_signal_while_the_files_are_moved_waits(nursery: Nursery, job: Path, count: int, number: int) -> None:
    act = f"os.kill(os.getpid(), {int(number)})"
    ended = nursery.run("unlearn", job, first=QUICK + MOVING.format(count=count, act=act))
    assert ended.code == STOPS[signal.Signals(number)]
    assert whole(job.parent / "forgotten")
    assert "nothing was written" not in ended.err, "everything was"


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_death_while_the_files_are_moved_leaves_no_certificate_and_the_next_run_is_whole(
    nursery: Nursery, job: Path, count: int
) -> None:
    folder = job.parent / "forgotten"
    assert nursery.run("unlearn", job, first=QUICK + MOVING.format(count=count, act="os._exit(9)")).code == 9
    assert "certificate.json" not in names(folder)
    assert nursery.run("unlearn", job, first=QUICK).code == 0
    assert whole(folder)


def test_an_error_while_the_files_are_moved_is_an_error_in_words(nursery: Nursery, job: Path) -> None:
    act = "raise OSError(28, 'No space left on device', str(goal))"
    ended = nursery.run("unlearn", job, "--json", first=QUICK + MOVING.format(count=2, act=act))
    assert ended.code == 2
    assert "No space left on device" in json.loads(ended.out)["error"]
    assert "certificate.json" not in names(job.parent / "forgotten")
    assert nursery.run("unlearn", job, first=QUICK).code == 0
    assert whole(job.parent / "forgotten")


def test_death_while_a_result_is_replaced_leaves_no_mixture(nursery: Nursery, job: Path) -> None:
    folder = job.parent / "forgotten"
    assert nursery.run("unlearn", job, first=QUICK).code == 0
    before = digests(folder)
    assert nursery.run("unlearn", job, "--force", first=QUICK + MOVING.format(count=3, act="os._exit(9)")).code == 9
    assert "certificate.json" not in names(folder)
    told = nursery.run("unlearn", job, first=QUICK)
    assert (told.code, "holds the result of an earlier run" in told.err) == (2, True)
    assert digests(folder, "earlier") == before, "and all of it is back"
    assert nursery.run("unlearn", job, "--force", first=QUICK).code == 0
    assert whole(folder)


def test_signals_at_random_times(nursery: Nursery, job: Path) -> None:
    draw, files, seen = random.Random(0), digests(job.parent), set()
    for turn in range(TURNS):
        folder = job.parent / f"out{turn}"
        number = draw.choice(list(STOPS))
        after = draw.uniform(0.05, 0.3)
        ended = nursery.run("unlearn", job, "--out", folder, first=QUICK, after=after, number=number)
        seen.add(ended.code)
        assert ended.code in (0, STOPS[number]), ended.err
        assert "Traceback" not in ended.err
        assert whole(folder) or names(folder) == set()
        assert whole(folder) or ended.code != 0
    assert digests(job.parent, *(f"out{turn}" for turn in range(TURNS))) == files
    assert seen - {0}, "no run was stopped: the times are too long"


def test_death_at_random_times(nursery: Nursery, job: Path) -> None:
    draw, files = random.Random(1), digests(job.parent)
    folder = job.parent / "forgotten"
    for _ in range(TURNS):
        ended = nursery.run("unlearn", job, first=QUICK, after=draw.uniform(0, 0.3), number=signal.SIGKILL)
        assert ended.code in (0, 2, -signal.SIGKILL)  # 2: a run before it was quick enough
        assert whole(folder) or "certificate.json" not in names(folder)
        assert digests(job.parent, "forgotten") == files
    ended = nursery.run("unlearn", job, "--force", first=QUICK)
    assert ended.code == 0
    assert whole(folder)


def test_two_runs_at_once_do_not_mix(nursery: Nursery, job: Path) -> None:
    """The second is told that the first is writing."""
    first = """
import forsaken.jobs.run as place, subprocess, sys, os
real = place._write_weights
def told(*given, **named):
    child = os.fork()
    if child == 0:
        try:
            forsaken.cli.main.main()
        except SystemExit as ended:
            os._exit(50 + ended.code)
        os._exit(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 52, "the second run was not refused"
    return real(*given, **named)
place._write_weights = told
"""
    ended = nursery.run("unlearn", job, first=QUICK + first)
    assert ended.code == 0, ended.err
    assert "another run is writing" in ended.err
    assert whole(job.parent / "forgotten")
