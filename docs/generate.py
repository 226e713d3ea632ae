"""
Writes the pages that are made from the code: the command line, and the kinds of events.

    python docs/generate.py

A test fails while a page says something else than the code.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import msgspec
from refold.cli import cli
from refold.replay import events
from refold.replay.ports import Usage
from refold.replay.requests import NewItem, RequestDelta

DOCS = Path(__file__).resolve().parent
WIDTH = 88
HEAD = "<!-- Made by `python docs/generate.py`; change the code, not this page. -->"
BEGIN, END = "<!-- kinds: made by `python docs/generate.py` -->", "<!-- end of kinds -->"
JSON = {
    "int": "number",
    "str": "text",
    "bool": "boolean",
    "float": "number",
    "Raw": "any value",
    "Effect": '`"none"`, `"unknown"` or `"done"`',
}
PARTS = ((events.Failure, "failure"), (Usage, "usage"), (RequestDelta, "request"), (NewItem, "item"))


def cli_page() -> str:
    """The reference of the command line, from its own help."""
    lines = ["# Command line", "", HEAD, "", *_help(cli, "refold")]
    for name in cli.list_commands(click.Context(cli)):
        lines += ["", f"## refold {name}", "", *_help(cli.commands[name], f"refold {name}")]
    return "\n".join([*lines, ""])


def _help(command: click.Command, name: str) -> list[str]:
    # As under its group: a command remembers the names of its help option from its first use.
    names = cli.context_settings["help_option_names"]
    context = click.Context(
        command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=names
    )
    return ["```", *(line.rstrip() for line in command.get_help(context).splitlines()), "```"]


def log_page(page: str) -> str:
    """*page* with its part on kinds made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{kinds()}\n{END}{after}"


def kinds() -> str:
    """Every kind of event with its fields, then the structs they use."""
    lines: list[str] = []
    for body in events.EventBody.__args__:
        lines += _described(body, str(body.__struct_config__.tag), skip=("at",))
    lines += ["### Parts", ""]
    for part, name in (
        (events.Failure, "failure"),
        (Usage, "usage"),
        (RequestDelta, "request"),
        (NewItem, "item"),
    ):
        lines += _described(part, name, heading="####")
    return "\n".join(lines)


def _described(
    struct: type[msgspec.Struct], name: str, *, heading: str = "###", skip: tuple[str, ...] = ()
) -> list[str]:
    lines = [f"{heading} {name}", "", *_prose(struct), ""]
    rows = [field for field in msgspec.structs.fields(struct) if field.name not in skip]
    if rows:
        lines += ["| field | is | left out |", "| --- | --- | --- |"]
        lines += [
            f"| `{field.encode_name}` | {_json(struct, field.name)} | {_default(field)} |" for field in rows
        ]
        lines.append("")
    return lines


def _prose(struct: type[msgspec.Struct]) -> list[str]:
    """The docstring down to its arguments, `code` as Markdown has it already."""
    text = re.split(r"\n\s*Args:", struct.__doc__ or "")[0]
    return [line.strip() for line in text.strip().splitlines()]


def _json(struct: type, name: str) -> str:
    owner = next(each for each in struct.__mro__ if name in inspect.get_annotations(each))
    annotation = inspect.get_annotations(owner)[name]
    if name == "encoded_parts":  # decoded only where they are looked at, so their type does not tell
        return "list of ranges `[from, to]` and [items](#item)"
    parts = [_one(part) for part in annotation.split(" | ") if part != "None"]
    return " or ".join(parts)


def _one(annotation: str) -> str:
    if choices := re.fullmatch(r"Literal\[(.+)\]", annotation):
        return ", ".join(f"`{choice.strip()}`" for choice in choices[1].split(","))
    if annotation.startswith("list["):
        return f"list of {_one(annotation[5:-1])}"
    if annotation.startswith("dict["):
        return "object"
    part = next((name for struct, name in PARTS if struct.__name__ == annotation), None)
    return f"[{part}](#{part})" if part else JSON[annotation]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        return "when empty"
    value = field.default
    if value is None or isinstance(value, msgspec.Raw) or value == "":
        return "when there is none"
    if isinstance(value, msgspec.Struct):
        return "when nothing is known"
    return f"when `{msgspec.json.encode(value).decode()}`"


def main() -> None:
    """Write the pages."""
    (DOCS / "cli.md").write_text(cli_page())
    page = DOCS / "log-format.md"
    page.write_text(log_page(page.read_text()))


if __name__ == "__main__":
    main()
