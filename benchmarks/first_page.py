"""How long the first page of the site takes: its commands in a new clone, one after the other, each timed.

usage: python benchmarks/first_page.py

The clone is made from this repository as it was committed, in a temporary folder, and everything is installed anew.
What the page takes a person (reading, writing forsaken.toml) is not in it. Writes benchmarks/results/first-page.json:
seconds and exit code of each command, the verdicts, and the numbers of the audit that the page quotes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, origin

from forsaken._files import write_atomically

ROOT = Path(__file__).parents[1]
_QUOTED = ("rmia_auc", "lira_auc", "white_box_auc", "accuracy")
_MARK = "--- done"


def commands(page: str) -> list[str]:
    """Return the commands of a page, in order."""
    return "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()


def follow(lines: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run commands in one shell, as a person would, and return the seconds and the exit code of each."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTHON"))}
    shell = subprocess.Popen(
        ["bash"],  # noqa: S607
        cwd=folder,
        env=settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    steps = []
    for line in lines:
        begun = time.perf_counter()
        shell.stdin.write(f"{line}\necho {shlex.quote(_MARK)} $?\n")  # type: ignore[union-attr]
        shell.stdin.flush()  # type: ignore[union-attr]
        for told in shell.stdout:  # type: ignore[union-attr]
            if told.startswith(_MARK):
                steps.append(
                    {"command": line, "seconds": time.perf_counter() - begun, "exit": int(told.removeprefix(_MARK))}
                )
                print(steps[-1], flush=True)
                break
            print("   ", told.rstrip(), flush=True)
    shell.communicate()
    return steps


def main() -> None:
    made = origin()  # of what is cloned now, whatever is committed meanwhile
    lines = commands((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        here = [line.replace("https://forsaken.example/forsaken.git", shlex.quote(str(ROOT))) for line in lines]
        here[0] += " forsaken"
        steps = follow(here, Path(place))
        run = Path(place) / "forsaken" / "my-model" / "forgotten"
        result, audit = (json.loads((run / name).read_bytes()) for name in ("result.json", "audit-standard.json"))
    for step, line in zip(steps, lines, strict=True):
        step["command"] = line  # as the page has it, without the place of this clone
    found = {
        "steps": steps,
        "seconds": sum(step["seconds"] for step in steps),
        "verdict": result["verdict"]["word"],
        "audit": {
            each["name"]: {key: each[key] for key in ("before", "value", "interval")}
            for each in audit["numbers"]
            if each["name"] in _QUOTED
        },
        "cores": os.cpu_count(),
        "provenance": made,
    }
    write_atomically(RESULTS / "first-page.json", (json.dumps(found, indent=1) + "\n").encode())
    print(f"{found['seconds']:.0f} s, verdict {found['verdict']}")


if __name__ == "__main__":
    main()
