"""A function's parameters as a model sees them: their JSON Schema, and the conversion of what the model sends."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..replay import ports
from ..replay.errors import ToolError
from .context import ToolContext
from .docstrings import describe
from .errors import ToolDefinitionError

TOOL_NAME_CHARACTERS_MAX = 64
TOOL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{TOOL_NAME_CHARACTERS_MAX}}}")
"""What providers take for the name of a tool."""

_REF = "#/$defs/{name}"
_LEAVES = frozenset({str, int, bool})
"""Types that a value which already has them is not converted to."""


class Parameter(Struct, frozen=True, eq=False):
    """One argument that the model gives."""

    name: str
    hint: Any
    required: bool
    default: Any = None


class Signature(Struct, frozen=True, eq=False, kw_only=True):
    """
    What a function takes and returns.

    Args:
        tool: Name of the tool, for messages.
        parameters: What the model gives, in the order of the function.
        contexts: Parameters that get the call's `ToolContext`.
        returns: The declared return type; `typing.Any` where there is none.
        binding: The Python signature without the contexts.
        schema: JSON Schema of the parameters, as JSON text.
    """

    tool: str
    parameters: tuple[Parameter, ...]
    contexts: tuple[str, ...]
    returns: Any
    binding: inspect.Signature
    schema: bytes

    def fits(self, args: Mapping[str, Any]) -> bool:
        """Whether every argument is given in a type that needs no conversion; `convert` decides about all others."""
        for parameter in self.parameters:
            kind = type(args.get(parameter.name))
            if kind is not parameter.hint or kind not in _LEAVES:
                return False
        return len(args) == len(self.parameters)

    def convert(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """
        *args* as the function wants them, defaults filled in.

        Raises:
            ToolError: They do not fit; the message lists every argument that is wrong, for the model to read.
        """
        wrong: list[str] = []
        values: dict[str, Any] = {}
        given = 0
        for parameter in self.parameters:
            name = parameter.name
            if name not in args:
                if parameter.required:
                    wrong.append(f"argument {name!r} is missing")
                else:
                    values[name] = parameter.default
                continue
            given += 1
            value = args[name]
            kind = type(value)
            if kind is parameter.hint and kind in _LEAVES:
                values[name] = value
                continue
            try:
                values[name] = convert(value, parameter.hint)
            except (msgspec.ValidationError, RecursionError) as error:
                wrong.append(f"argument {name!r}: {error}")
        if given != len(args):
            known = {parameter.name for parameter in self.parameters}
            wrong.extend(f"there is no argument {name!r}" for name in args if name not in known)
        if wrong:
            raise invalid(self.tool, "; ".join(wrong))
        return values


def invalid(tool: str, why: str) -> ToolError:
    """The error of a call whose arguments do not fit; the tool was not called."""
    return ToolError(f"Invalid arguments for tool {tool!r}: {why}.", error_type="InvalidArguments")


def convert(value: Any, hint: Any) -> Any:
    """*value* in the type *hint*; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, hint, str_keys=True, dec_hook=_decode_custom)


def read_signature(function: Callable[..., Any], tool: str) -> Signature:
    """
    The signature of *function*.

    Raises:
        ToolDefinitionError: It cannot be a tool; the message names tool, parameter and annotation.
    """
    hints = _hints(function, tool)
    documented = describe(inspect.getdoc(function)).arguments
    parameters: list[Parameter] = []
    contexts: list[str] = []
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    binding = []
    for parameter in inspect.signature(function).parameters.values():
        _check_kind(parameter, tool)
        hint = hints.get(parameter.name, parameter.annotation)
        if _is_context(hint):
            contexts.append(parameter.name)
            continue
        if hint is inspect.Parameter.empty:
            raise ToolDefinitionError(
                f"tool {tool!r}: parameter {parameter.name!r} has no annotation; "
                "the model must be told its type (for a method, make a tool of the bound method)"
            )
        schema = _schema(hint, tool, parameter.name, definitions)
        text = _annotated_text(hint) or documented.get(parameter.name)
        if text:
            schema = {**schema, "description": text}
        required = parameter.default is inspect.Parameter.empty
        if not required:
            schema = {**schema, **_default(parameter.default)}
        properties[parameter.name] = schema
        parameters.append(Parameter(parameter.name, hint, required, None if required else parameter.default))
        binding.append(parameter)
    whole: dict[str, Any] = {"type": "object", "properties": properties}
    if needed := [parameter.name for parameter in parameters if parameter.required]:
        whole["required"] = needed
    whole["additionalProperties"] = False
    if definitions:
        whole["$defs"] = dict(sorted(definitions.items()))
    return Signature(
        tool=tool,
        parameters=tuple(parameters),
        contexts=tuple(contexts),
        returns=hints.get("return", Any),
        binding=inspect.Signature(sorted(binding, key=lambda p: p.kind)),
        schema=msgspec.json.encode(whole),
    )


def context_parameters(function: Callable[..., Any], what: str) -> list[str]:
    """The parameters of *function* that ask for the call's `ToolContext`."""
    return [name for name, hint in _hints(function, what).items() if name != "return" and _is_context(hint)]


def _hints(function: Callable[..., Any], tool: str) -> dict[str, Any]:
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not isinstance(inner, types.FunctionType | types.MethodType):
        inner = inner.__call__
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        written = inspect.get_annotations(inspect.unwrap(inner))
        where = ", ".join(f"{name}: {text}" for name, text in written.items() if isinstance(text, str))
        raise ToolDefinitionError(
            f"tool {tool!r}: an annotation cannot be resolved ({error}) in ({where}); "
            "its name must be importable where the function is defined, not only for the type checker"
        ) from None


def _check_kind(parameter: inspect.Parameter, tool: str) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        why = f"*{parameter.name} cannot be described to a model; take a list"
    elif parameter.kind is parameter.VAR_KEYWORD:
        why = f"**{parameter.name} cannot be described to a model; take a dict"
    elif parameter.kind is parameter.POSITIONAL_ONLY:
        why = f"parameter {parameter.name!r} is positional-only; arguments are passed by name"
    else:
        return
    raise ToolDefinitionError(f"tool {tool!r}: {why}")


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_context(part) for part in typing.get_args(hint))
    return isinstance(hint, type) and (hint is ports.ToolContext or issubclass(hint, ToolContext))


def _annotated_text(hint: Any) -> str | None:
    """The last text in `Annotated[...]`: a string, or what carries a description (Meta, Field, Doc)."""
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    found = None
    for note in hint.__metadata__:
        text = (
            note
            if isinstance(note, str)
            else getattr(note, "description", getattr(note, "documentation", None))
        )
        found = text if isinstance(text, str) and text else found
    return found


def components(hint: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    The JSON Schema of a type, and the definitions that it refers to.

    Raises:
        TypeError, NotImplementedError, RecursionError: It has none.
    """
    schema: dict[str, Any]
    (schema,), found = msgspec.json.schema_components([hint], schema_hook=_schema_custom, ref_template=_REF)
    msgspec.json.Decoder(hint, dec_hook=_decode_custom)
    schema = _hoist(schema, found)
    for name, definition in list(found.items()):
        found[name] = _hoist(definition, found)
    return schema, found


def _schema(hint: Any, tool: str, parameter: str, definitions: dict[str, Any]) -> dict[str, Any]:
    try:
        schema, found = components(hint)
    except (TypeError, NotImplementedError, RecursionError) as error:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        raise ToolDefinitionError(
            f"tool {tool!r}: parameter {parameter!r} has the unsupported annotation {_written(hint)} ({reason}); "
            "take JSON types, dataclasses, msgspec structs, enums, dates or pydantic models"
        ) from None
    for name, definition in found.items():
        if definitions.setdefault(name, definition) != definition:
            raise ToolDefinitionError(
                f"tool {tool!r}: parameter {parameter!r} brings a second type named {name!r}; rename one of them"
            )
    return schema


def _written(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _hoist(schema: Any, definitions: dict[str, Any]) -> Any:
    """*schema* with definitions nested in it (pydantic's) moved into *definitions*, and enums of text typed."""
    if isinstance(schema, list):
        return [_hoist(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    for name, definition in schema.get("$defs", {}).items():
        moved = _hoist(definition, definitions)
        if definitions.setdefault(name, moved) != moved:
            raise TypeError(f"two different types are named {name!r}")
    hoisted = {key: _hoist(part, definitions) for key, part in schema.items() if key != "$defs"}
    values = hoisted.get("enum")
    # Some providers refuse an enum without a type.
    if isinstance(values, list) and "type" not in hoisted and all(isinstance(value, str) for value in values):
        hoisted = {"type": "string", **hoisted}
    return hoisted


def _default(value: Any) -> dict[str, Any]:
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encode_custom))
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        return {}
    return {"default": plain}


# A pydantic model in an annotation means that pydantic is imported already; refold itself never imports it.


def _pydantic_model(kind: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return kind
    return None


def _schema_custom(kind: Any) -> dict[str, Any]:
    model = _pydantic_model(kind)
    if model is None:
        raise NotImplementedError(f"type {_written(kind)} has no JSON form")
    schema: dict[str, Any] = model.model_json_schema(ref_template="#/$defs/{model}")
    return schema


def _decode_custom(kind: Any, value: Any) -> Any:
    model = _pydantic_model(kind)
    if model is None:
        raise NotImplementedError(f"type {_written(kind)} has no JSON form")
    if isinstance(value, kind):
        return value
    try:
        return model.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_pydantic_errors(error)) from None


def _encode_custom(value: Any) -> Any:
    if _pydantic_model(type(value)) is None:
        raise NotImplementedError(f"type {_written(type(value))} has no JSON form")
    plain: dict[str, Any] = value.model_dump(mode="json")
    return plain


def _pydantic_errors(error: ValueError) -> str:
    found = getattr(error, "errors", None)
    if found is None:
        return str(error)
    parts = []
    for detail in found(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in detail["loc"])
        parts.append(f"{where}: {detail['msg']}" if where else str(detail["msg"]))
    return ", ".join(parts)
