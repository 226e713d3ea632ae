"""`Agent(output=SomeType)`: what a model is told of the type, how its answer is read, and the type given back."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ..journal import codec
from ..journal.errors import UsageError
from .signature import components, convert


class BadOutput(Exception):
    """The model gave no answer of the type asked for, however often it was told."""


class Output(Struct, frozen=True, eq=False):
    """
    The type of an agent's output.

    Args:
        kind: A msgspec struct, dataclass, pydantic model or TypedDict.
        name: What the model knows it by.
        schema: Its JSON Schema.
    """

    kind: Any
    name: str
    schema: dict[str, Any]

    def response_format(self) -> dict[str, Any]:
        """The parameter of a request that asks for it; strict where every field is required."""
        schema = _strict(self.schema)
        described: dict[str, Any] = {"name": self.name, "schema": self.schema if schema is None else schema}
        if schema is not None:
            described["strict"] = True
        return {"type": "json_schema", "json_schema": described}

    def read(self, text: str) -> Any:
        """
        An answer as a value of the type.

        Raises:
            ValueError: It does not fit; the message is for the model to read.
        """
        try:
            return convert(msgspec.json.decode(_unfenced(text)), self.kind)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise ValueError(f"it is no JSON: {error}" if text.strip() else "it is empty") from None

    def restore(self, output: Any) -> Any:
        """A recorded output in the type. Raises `UnsupportedValue` if the type no longer fits it."""
        return codec.restore(output, self.kind, what=f"output {self.name!r} of the run")


def read_output(kind: Any) -> Output:
    """
    The output of that type.

    Raises:
        UsageError: A model cannot be asked for it.
    """
    name = getattr(kind, "__name__", str(kind))
    try:
        schema, definitions = components(kind)
    except (TypeError, NotImplementedError, RecursionError) as error:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        raise UsageError(f"output={name}: a model cannot be told of this type ({reason})") from None
    root = definitions.get(schema.get("$ref", "").rpartition("/")[2], schema)
    if root.get("type") != "object" or "properties" not in root:
        raise UsageError(
            f"output={name}: a model is asked for an object: "
            "give a msgspec struct, dataclass, pydantic model or TypedDict"
        )
    whole = dict(root)
    reference = schema.get("$ref", "")
    used = {
        name: each for name, each in definitions.items() if each is not root or reference in str(definitions)
    }
    if used:
        whole["$defs"] = dict(sorted(used.items()))
    return Output(kind, name, whole)


def _unfenced(text: str) -> str:
    """Without the fence that models like to put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        return text.partition("\n")[2].rpartition("```")[0]
    return text


def _strict(schema: Any) -> Any:
    """The schema with nothing optional and nothing further allowed; None if it does allow something."""
    if isinstance(schema, list):
        parts = [_strict(part) for part in schema]
        return None if any(part is None for part in parts) else parts
    if not isinstance(schema, dict):
        return schema
    if "default" in schema:
        return None
    strict: dict[str, Any] = {}
    for key, part in schema.items():
        inner = part if key in ("enum", "const", "required", "description", "title") else _strict(part)
        if inner is None and part is not None:
            return None
        strict[key] = inner
    if schema.get("type") == "object":
        if set(schema.get("properties", {})) != set(schema.get("required", ())):
            return None
        if schema.get("additionalProperties", False) is not False:
            return None
        strict["additionalProperties"] = False
    return strict
