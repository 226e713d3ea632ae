"""What is shipped: built from a copy of the tree, installed in an empty environment, used from a hostile folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gate.sources_of_package import ROOT, package_files, project

pytestmark = pytest.mark.wheel

HOSTILE = "raise SystemExit('a file of the user was taken for a part of refold: ' + __file__)\n"
HOSTILE_FILES = ("agent.py", "cli.py", "journal.py", "replay.py", "__init__.py", "tests.py", "conftest.py")
AUTOMATION = ("CI", "BUILD_NUMBER")
"""What pytest knows an automated build by: its reports are longer there."""
PINNED = """
from refold import Agent, ScriptedModel, refold_replay, tool
from refold.agent.scripted import call

@tool
def pay(amount: int) -> str:
    \"\"\"Pay.\"\"\"
    return f"paid {amount}"

script = [call("pay", amount=3), "Paid."]
agent = Agent("payer", model=ScriptedModel(script), tools=[pay], instructions="You pay.")
test_threads = refold_replay("threads/*.jsonl", agent=agent, record={"three": "Pay 3", "more": "Pay more"})
"""
CRASHES = """
from refold import Agent, ScriptedModel, tool
from refold.agent.scripted import call
from refold.replay.fuzz import every_crash_point

paid = []

def pay(amount: int) -> str:
    \"\"\"Pay.\"\"\"
    paid.append(amount)
    return "paid"

def agent(**flags):
    script = ScriptedModel([call("pay", amount=3), "Paid."])
    return Agent("payer", model=script, tools=[tool(**flags)(pay)])

def test_a_crash_changes_nothing():
    assert every_crash_point(agent(), "Pay 3", world=paid).histories > 20

def test_a_wrong_flag():
    every_crash_point(agent(idempotent=True), "Pay 3", world=paid)
"""
USERS_AGENT = """
import refold


@refold.program
async def echo(run: refold.Run, text: str) -> str:
    return f"{text} {run.random.randrange(10) < 10}"
"""
AGENT_OF_A_NAMED_MODEL = """
import refold

a = refold.Agent("a", model="openai/none")
"""


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def sdist_names(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}


@dataclass(frozen=True)
class Installed:
    python: Path
    home: Path
    """`$REFOLD_HOME` of every command."""

    def run(self, *command: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, as a user with nothing else set would."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYTEST", "REFOLD_", "PIP_CONSTRAINT", "COV"))
            and name not in AUTOMATION
        }
        done = subprocess.run(
            [str(self.python.with_name(command[0])), *command[1:]],
            cwd=cwd,
            env={**kept, "REFOLD_HOME": str(self.home), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, (
            f"{' '.join(command)} answered {done.returncode}:\n{done.stderr}{done.stdout}"
        )
        return done


def run_quietly(*command: object, cwd: Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel made from it, of a tree that also holds what must not be shipped."""
    tree = tmp_path_factory.mktemp("tree") / "copy"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, tree, symlinks=True, ignore=unwanted)
    for decoy in (
        ".venv/lib/decoy.py",
        "tests/test_decoy.py",
        "journal/.cache/decoy.py",
        "build/lib/decoy.py",
    ):
        (tree / decoy).parent.mkdir(parents=True, exist_ok=True)
        (tree / decoy).write_text("decoy = True\n")
    out = tmp_path_factory.mktemp("dist")
    run_quietly(sys.executable, "-m", "build", "--outdir", out, tree, cwd=out)

    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The wheel with its core and the embedded Postgres, and nothing else, in an environment of its own."""
    environment = tmp_path_factory.mktemp("installed") / "env"
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ROOT / "constraints.txt"
    run_quietly(*pip, "--constraint", constraints, f"{built.wheel}[embedded]", cwd=environment)
    home = Path(tempfile.mkdtemp(prefix="refold-wheel-"))
    there = Installed(python, home)

    yield there

    stop = "from refold.journal import embedded; embedded.stop(immediately=True)"
    there.run("python", "-c", stop, cwd=environment)
    shutil.rmtree(home)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder in which every name of ours is taken by a file that fails when it is imported or read."""
    for name in HOSTILE_FILES:
        (tmp_path / name).write_text(HOSTILE)
    (tmp_path / "schema.sql").write_text("this is no SQL;\n")
    return tmp_path


def test_the_wheel_holds_the_package_under_its_one_name(built: Built) -> None:
    names = built.wheel_names()
    modules = {f"refold/{file.relative_to(ROOT).as_posix()}" for file in package_files()}

    assert {name for name in names if name.endswith(".py")} == modules
    assert {"refold/schema.sql", "refold/py.typed"} <= names
    assert {name.partition("/")[0] for name in names} == {
        "refold",
        f"refold-{project()['project']['version']}.dist-info",
    }


def test_the_sdist_holds_what_builds_the_wheel_and_no_more(built: Built) -> None:
    names = built.sdist_names()

    assert {"pyproject.toml", "README.md", "LICENSE", "schema.sql", "py.typed", "cli.py"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {
        "journal",
        "replay",
        "agent",
        "command_line",
        "refold.egg-info",
    }
    assert not any("decoy" in name or ".venv" in name for name in names)


def test_only_refold_lands_in_site_packages(installed: Installed, tmp_path: Path) -> None:
    """`agent` or `cli` alone there would be found before, or instead of, a module of the user."""
    listing = (
        "import importlib.metadata, json, pathlib, sysconfig;"
        "print(json.dumps([sorted({f.parts[0] for f in importlib.metadata.files('refold')}),"
        "sorted(p.name for p in pathlib.Path(sysconfig.get_path('purelib')).iterdir())]))"
    )
    ours, everything = json.loads(installed.run("python", "-c", listing, cwd=tmp_path).stdout)

    assert set(ours) == {"..", "refold", f"refold-{project()['project']['version']}.dist-info"}
    assert not {"agent", "replay", "journal", "command_line", "cli.py", "tests", "schema.sql"} & set(
        everything
    )
    assert not {"litellm", "redis", "pydantic", "hypothesis"} & set(everything)


def test_every_module_is_imported_from_the_wheel_in_a_hostile_folder(
    installed: Installed, hostile: Path
) -> None:
    names = [".".join(["refold", *file.relative_to(ROOT).with_suffix("").parts]) for file in package_files()]
    imports = "; ".join(f"import {name.removesuffix('.__init__')}" for name in names)
    check = "import pathlib, refold; print(pathlib.Path(refold.__file__).parent.parent.name)"

    said = installed.run("python", "-c", f"{imports}; {check}", cwd=hostile).stdout

    assert said == "site-packages\n"


def test_the_command_line_works_in_a_hostile_folder(installed: Installed, hostile: Path) -> None:
    assert "Usage: refold" in installed.run("refold", "--help", cwd=hostile).stdout
    assert project()["project"]["version"] in installed.run("refold", "--version", cwd=hostile).stdout

    installed.run("refold", "init", cwd=hostile)
    installed.run("refold", "doctor", cwd=hostile)

    assert installed.run("refold", "threads", "--json", cwd=hostile).stdout == ""


def test_an_agent_in_the_users_own_agent_py_runs(installed: Installed, hostile: Path) -> None:
    (hostile / "agent.py").write_text(USERS_AGENT)

    ran = installed.run("refold", "run", "agent:echo", "hello", "--thread", "wheel-1", cwd=hostile)
    told = installed.run("refold", "replay", "wheel-1", "--agent", "agent:echo", "--json", cwd=hostile)

    assert ran.stdout == "hello True\n"
    assert json.loads(told.stdout)["matched"] is True


def test_a_missing_extra_is_one_line_that_names_it_before_anything_is_written(
    installed: Installed, hostile: Path
) -> None:
    (hostile / "agent.py").write_text(AGENT_OF_A_NAMED_MODEL)

    failed = installed.run("refold", "run", "agent:a", "hello", "--thread", "w-2", cwd=hostile, status=2)
    threads = installed.run("refold", "threads", "--json", cwd=hostile).stdout.splitlines()

    assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr
    assert "refold[models]" in failed.stderr
    assert "w-2" not in {json.loads(line)["thread"] for line in threads}


def test_the_plugin_pins_an_agent_in_a_folder_of_its_own(installed: Installed, tmp_path: Path) -> None:
    """Recorded once, replayed ever after without a database, and told apart from a changed agent."""
    constraints = ROOT / "constraints.txt"
    pip = (installed.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run_quietly(*pip, "--constraint", constraints, "pytest", cwd=tmp_path)
    test = tmp_path / "test_payer.py"
    test.write_text(PINNED)

    missing = installed.run("pytest", "-q", cwd=tmp_path, status=1).stdout
    assert "three.jsonl is not recorded yet: pytest --refold-record" in missing
    recorded = installed.run("pytest", "-q", "--refold-record", cwd=tmp_path).stdout
    assert "2 passed" in recorded
    assert sorted(file.name for file in (tmp_path / "threads").iterdir()) == ["more.jsonl", "three.jsonl"]
    before = (tmp_path / "threads" / "three.jsonl").read_bytes()
    assert (
        "test_threads[three] PASSED" in installed.run("pytest", "-v", "--refold-record", cwd=tmp_path).stdout
    )
    assert (tmp_path / "threads" / "three.jsonl").read_bytes() == before

    test.write_text(PINNED.replace("You pay.", "You pay at once."))
    changed = installed.run("pytest", "-q", cwd=tmp_path, status=1).stdout
    assert "2 failed" in changed
    assert "diverged at seq 3, r1/1 (request)" in changed
    assert changed.count("Nothing was executed") == 2  # once for each of the two
    assert 'message 1 (system).content: "You pay." became "You pay at once."' in changed


def test_crashes_are_tried_with_nothing_but_the_core_and_pytest(installed: Installed, tmp_path: Path) -> None:
    constraints = ROOT / "constraints.txt"
    pip = (installed.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run_quietly(*pip, "--constraint", constraints, "pytest", cwd=tmp_path)
    (tmp_path / "test_crashes.py").write_text(CRASHES)

    tried = installed.run("pytest", "-q", cwd=tmp_path, status=1).stdout

    assert "1 failed, 1 passed" in tried
    assert "tool pay ran 2 times for r1/2.1.1, with one idempotency key" in tried
    strategy = "from refold.replay.fuzz import fault_schedules; fault_schedules()"
    refused = installed.run("python", "-c", strategy, cwd=tmp_path, status=1).stderr
    assert "pip install 'refold[fuzz]'" in refused.splitlines()[-1]
