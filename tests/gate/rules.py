"""The house rules that a parser can check. Each takes a module and says where it is broken, and how."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from gate.sources_of_package import ROOMS, Module

MODULE_LINES_MAX = 499
FUNCTION_LINES_MAX = 69

CORE = frozenset({"click", "msgspec", "platformdirs", "psycopg", "rich"})
"""Import names of what is always installed; `test_the_core_is_what_pyproject_installs` holds them together."""

HOMES = {
    "psycopg": "journal/postgres.py",
    "litellm": "agent/litellm_client.py",
    "redis": "journal/hot.py",
    "mcp": "agent/mcp_server.py",
}
"""What only one module may import."""

SOURCES = "journal/sources.py"
CLOCKS = frozenset(
    {
        *(f"time.{name}{unit}" for name in ("time", "monotonic", "perf_counter") for unit in ("", "_ns")),
        *(f"time.{name}" for name in ("localtime", "gmtime", "ctime", "process_time", "clock_gettime")),
        *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
        "datetime.date.today",
    }
)
ENTROPY = frozenset({"os.urandom", "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.uuid8"})

MACHINE_PATH = re.compile(r"(?<![\w.:/<>~$}*)-])/(?:home|root|work|opt|mnt|srv|media|Users)/[\w.]")
REGISTRY = re.compile(
    r"(?i)pypi\.org|python[h]osted|npmjs\.|crates\.io|deb\.debian|proxy\.golang|index[-]url\b|find[-]links"
)
ELSEWHERE = re.compile(
    r"(?i)\bshared/(?:design|reference|cases|hooks)|\bdesign\.md|\bdesign,? sections?\b|co-authored[-]by"
)


def arrows_point_down(module: Module) -> Iterator[str]:
    """`cli -> command_line -> agent -> replay -> journal`, by relative imports."""
    for each in module.imports():
        if each.top != "refold":
            continue
        room = each.target.split(".")[1] if "." in each.target else ""
        if module.room is None or each.target == "refold.__version__":
            continue
        if room not in ROOMS:
            yield module.at(
                each.line, f"imports {each.target}: the public face is for users, not for its own rooms"
            )
        elif ROOMS.index(room) > ROOMS.index(module.room):
            yield module.at(each.line, f"{module.room} imports {each.target}, which is above it")


def own_modules_are_imported_relatively(module: Module) -> Iterator[str]:
    """`refold` or a room by its bare name would be found in the user's folder first."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in {"refold", *ROOMS}:
                yield module.at(node.lineno, f"imports {name} absolutely; write it relatively")


def foreign_packages_have_one_home(module: Module) -> Iterator[str]:
    """psycopg, litellm and redis are each imported by one module."""
    for each in module.imports():
        home = HOMES.get(each.top)
        if home is not None and module.path != home:
            yield module.at(each.line, f"imports {each.top}, which only {home} may")


def extras_are_imported_lazily(module: Module) -> Iterator[str]:
    """What may be missing, or takes long, is imported inside the function that needs it."""
    for each in module.imports():
        known = each.top in sys.stdlib_module_names or each.top in CORE or each.top == "refold"
        if not known and not each.lazy:
            yield module.at(each.line, f"imports {each.top} at module level, which the core does not install")


def clocks_and_randomness_come_from_sources(module: Module) -> Iterator[str]:
    """Whoever reads a clock or draws a random number goes through `Sources`, so that tests can pass another."""
    if module.path == SOURCES:
        return
    calls = {id(node.func): node for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    for name, line, node in module.dotted_names():
        top = name.partition(".")[0]
        if name in CLOCKS:
            yield module.at(line, f"{name}: clocks are read in {SOURCES}")
        elif name in ENTROPY or (top == "secrets" and name != "secrets"):
            yield module.at(line, f"{name}: randomness is drawn in {SOURCES}")
        elif name == "random.Random":
            call = calls.get(id(node))
            if module.room != "replay":
                yield module.at(line, "random.Random: seeded streams belong to replay/")
            elif call is not None and not (call.args or call.keywords):
                yield module.at(line, "random.Random(): without a seed it is not deterministic")
        elif top == "random" and name.count(".") == 1:
            yield module.at(line, f"{name}: randomness is drawn in {SOURCES}")


def modules_stay_small(module: Module) -> Iterator[str]:
    """One idea fits in 500 lines."""
    lines = module.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield module.at(1, f"the module has {lines} lines; at most {MODULE_LINES_MAX}")


def functions_stay_small(module: Module) -> Iterator[str]:
    """One step fits on a screen."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield module.at(node.lineno, f"{node.name} has {lines} lines; at most {FUNCTION_LINES_MAX}")


def no_except_is_bare(module: Module) -> Iterator[str]:
    """What is caught is named."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield module.at(node.lineno, "a bare except")


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def what_is_public_is_documented(module: Module) -> Iterator[str]:
    """Every public module, class, function and method states its promise."""
    file = module.path.rpartition("/")[2].removesuffix(".py")
    if file.startswith("_") and file != "__init__":
        return
    yield from _undocumented(module, module.tree, module.path)


def _undocumented(module: Module, node: Documented, name: str) -> Iterator[str]:
    if ast.get_docstring(node) is None:
        yield module.at(getattr(node, "lineno", 1), f"{name} is public and has no docstring")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not child.name.startswith("_") and not _documented_elsewhere(child):
            yield from _undocumented(module, child, child.name)


def _documented_elsewhere(node: ast.AST) -> bool:
    """Overloads by their implementation, setters by their getter, overrides by what they override."""
    names = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    return any(name.rpartition(".")[2] in {"overload", "override", "setter", "deleter"} for name in names)


def no_path_of_a_machine_is_named(module: Module) -> Iterator[str]:
    """Folders are asked for: platformdirs, tempfile, the environment. (Of /tmp, ruff knows.)"""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if re.match(r"/(?:home|root|work|opt|mnt|srv|Users)(?:/|$)", node.value):
            yield module.at(node.lineno, f"names the path {node.value!r}")


MODULE_RULES = (
    arrows_point_down,
    own_modules_are_imported_relatively,
    foreign_packages_have_one_home,
    extras_are_imported_lazily,
    clocks_and_randomness_come_from_sources,
    modules_stay_small,
    functions_stay_small,
    no_except_is_bare,
    what_is_public_is_documented,
    no_path_of_a_machine_is_named,
)


def foreign_words(path: str, text: str) -> Iterator[str]:
    """The project speaks of itself alone: no machine, no registry, nothing that is not in the repository."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in (
            ("a machine", MACHINE_PATH),
            ("a registry", REGISTRY),
            ("elsewhere", ELSEWHERE),
        ):
            if found := pattern.search(line):
                yield f"{path}:{number}: speaks of {what}: {found.group()!r}"


def changelog_faults(text: str, version: str) -> Iterator[str]:
    """Keep a Changelog: Unreleased first, then releases from new to old, in known groups."""
    groups = {"Format", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    if not text.startswith("# Changelog\n"):
        yield "the first line is not '# Changelog'"
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if heads[:1] != ["[Unreleased]"]:
        yield "the first section is not '## [Unreleased]'"
    releases: list[tuple[int, ...]] = []
    for head in heads[1:]:
        if found := re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", head):
            releases.append(tuple(int(part) for part in found.groups()))
        else:
            yield f"'## {head}' is not '## [X.Y.Z] - YYYY-MM-DD'"
    if releases != sorted(set(releases), reverse=True):
        yield "the releases do not run from new to old, each once"
    if releases and tuple(int(part) for part in version.split(".")) < releases[0]:
        yield f"version {version} is older than the newest release"
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        names = re.findall(r"^### (.+)$", section, re.MULTILINE)
        if strange := set(names) - groups:
            yield f"unknown groups: {sorted(strange)}"
        if "Format" in names and names[0] != "Format":
            yield "a change of format is told first"
        for group in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
            if not re.search(r"^- ", group, re.MULTILINE):
                yield f"the group {group.splitlines()[0]!r} says nothing"
