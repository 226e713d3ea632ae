"""The package as the gate sees it: its modules parsed, and what each imports. Nothing of it is imported here."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("journal", "replay", "agent", "command_line", "cli")
"""From the bottom up: each may use those before it."""


@dataclass(frozen=True)
class Import:
    target: str
    """Absolute dotted name of what is imported, with the imported name last."""
    line: int
    lazy: bool
    """Inside a function: it costs nothing until the function is called."""

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Module:
    path: str
    """Relative to the root of the repository."""
    text: str

    @classmethod
    def read(cls, file: Path) -> Module:
        return cls(file.relative_to(ROOT).as_posix(), file.read_text())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def room(self) -> str | None:
        """The room the module lives in; None for the public face of the package."""
        first = self.path.partition("/")[0].removesuffix(".py")
        return first if first in ROOMS else None

    @property
    def package(self) -> list[str]:
        """The parts of the package that relative imports of this module start from."""
        return ["refold", *self.path.split("/")[:-1]]

    def at(self, line: int, complaint: str) -> str:
        return f"{self.path}:{line}: {complaint}"

    def imports(self) -> Iterator[Import]:
        lazy = {
            id(inner)
            for outer in ast.walk(self.tree)
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(outer)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, id(node) in lazy)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield Import(f"{self._origin(node)}.{alias.name}", node.lineno, id(node) in lazy)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.package
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def dotted_names(self) -> Iterator[tuple[str, int, ast.expr]]:
        """Each name that is read, resolved through the imports: `now` from `datetime` is `datetime.datetime.now`."""
        origins: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    origins[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute | ast.Name):
                parts: list[str] = []
                inner: ast.expr = node
                while isinstance(inner, ast.Attribute):
                    parts.append(inner.attr)
                    inner = inner.value
                if isinstance(inner, ast.Name) and inner.id in origins:
                    yield ".".join([origins[inner.id], *reversed(parts)]), node.lineno, node


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_files() -> list[Path]:
    """Every Python file that belongs to the package."""
    found = [*ROOT.glob("*.py")]
    for room in ROOMS:
        found += (ROOT / room).rglob("*.py")
    return sorted(found)


def package_modules() -> list[Module]:
    return [Module.read(file) for file in package_files()]


def repository_files() -> list[Path]:
    """Every file that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    return [
        file
        for name in sorted(set(names))
        if name and (file := ROOT / name).is_file() and not file.is_symlink()
    ]
