"""The tutorial, typed in from top to bottom, with real processes that are really killed."""

from __future__ import annotations

import re
from pathlib import Path

from launcher import Launcher
from markdown import ROOT
from shell import Shell

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_is_what_happens(launcher: Launcher, tmp_path: Path, pg_dsn: str) -> None:
    shell = Shell(launcher, tmp_path, {"REFOLD_DSN": pg_dsn, "PYTHONDONTWRITEBYTECODE": "1"})
    followed = 0
    for language, text in FENCED.findall((ROOT / "docs" / "tutorial.md").read_text()):
        if language == "python":
            name = text.split("\n", 1)[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
        elif language == "console":
            shell.follow(text)
            followed += 1

    assert followed >= 8
    world = [line.split()[0] for line in (tmp_path / "world.log").read_text().splitlines()]
    assert [world.count(name) for name in ("find_order", "refund", "notify")] == [3, 3, 4]
