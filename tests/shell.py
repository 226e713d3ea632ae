"""Runs the console blocks of the documentation: what is typed after `$`, and what it must print."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from launcher import Launcher


class Shell:
    """
    A person at a terminal, in a folder.

    `python FILE` and `refold` run in processes of the launcher, everything else in a real shell.
    """

    def __init__(self, launcher: Launcher, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self._launcher = launcher
        self._env = env

    def type(self, line: str) -> str:
        """What the command prints, stdout first; a process that was killed says so, as in a shell."""
        words = shlex.split(line, comments=True)
        env = dict(self._env)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        options: dict[str, Any]
        if words[0] == "refold":
            options = {"cli": words[1:]}
        elif words[0] == "python":
            options = {"script": self.folder / words[1], "args": words[2:]}
        else:
            done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
            return done.stdout + done.stderr
        process = self._launcher.launch(self.folder, env=env, **options)
        code = process.wait()
        return process.stdout + process.stderr + ("Killed\n" if code == -9 else "")

    def follow(self, block: str) -> None:
        """Type each command of a block and compare; `...` stands for anything."""
        for typed, expected in _exchanges(block):
            printed = self.type(typed)
            if expected:
                assert re.fullmatch(_pattern(expected), printed, re.DOTALL), (
                    f"$ {typed}\n--- the page says\n{expected}--- it printed\n{printed}"
                )


def _exchanges(block: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            pairs.append((line[2:].strip(), ""))
        else:
            typed, expected = pairs.pop()
            pairs.append((typed, expected + line))
    return pairs


def _pattern(expected: str) -> str:
    parts = [re.escape(part) for part in re.split(r"\.\.\.", expected)]
    # Columns are as wide as what is in them.
    return ".*?".join(re.sub(r"(\\ ){2,}", r" +", part) for part in parts)
