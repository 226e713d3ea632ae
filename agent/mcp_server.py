"""`McpServer`: the tools of a Model Context Protocol server. The only module that imports mcp, and only at a start."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import inspect
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from msgspec import structs

from ..journal import codec
from ..journal.errors import MissingExtra, UsageError
from ..replay import ports
from ..replay.errors import ToolError
from .own_loop import OwnLoop
from .signature import Signature, invalid
from .tools import TIMEOUT_S_DEFAULT, Tool, checked, is_time

START_TIMEOUT_S_DEFAULT = 30.0
PAGES_MAX = 100
KEY_META = "refold/idempotency-key"
"""Under this name of a call's `_meta` the server gets the call's idempotency key."""

_CONTEXT = "the call's context"
"""No server's argument has such a name."""

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class McpCallFailed(Exception):
    """A tool of an MCP server reported an error, or the server ended in the middle of the call."""


class McpServer:
    """
    A Model Context Protocol server in a process of its own, spoken to over its stdin and stdout.

    Its tools go into `Agent(tools=...)` beside any others. Use it in a `with` block, or `start` and `close` it.
    The tools are those that it lists when it is started, by name; their schemas are part of what a run records.
    A server that has ended is started again for the next call.

    Args:
        command: The program to start.
        args: Its arguments.
        env: Environment variables for it, beside the few that are safe to inherit.
        cwd: Folder that it works in.
        name: What messages call it; the program's name by default.
        prefix: Put before the names of its tools, for several servers with tools of the same names.
        only: The tools to use; all by default.
        read_only: Tools of which you know that they change nothing; a call in doubt is run again.
        idempotent: Tools of which you know that a call repeated with one idempotency key acts once.
        trust_annotations: Take the server's own word for that too. Without it a call in doubt parks the run.
        approval: Whether a person must allow each call, or the tools for which that holds.
        timeout_s: Total time one call may take, seconds.
        start_timeout_s: Time the server may take to start and to list its tools, seconds.

    Raises:
        MissingExtra: The extra `mcp` is not installed.
        UsageError: What is given is no list of names, or `only` leaves out a tool that another option names.
        ToolDefinitionError: Its tools could not be tools here with what is said of them.
    """

    def __init__(
        self,
        command: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        name: str | None = None,
        prefix: str = "",
        only: Iterable[str] | None = None,
        read_only: Iterable[str] = (),
        idempotent: Iterable[str] = (),
        trust_annotations: bool = False,
        approval: bool | Iterable[str] = False,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        start_timeout_s: float = START_TIMEOUT_S_DEFAULT,
    ) -> None:
        if importlib.util.find_spec("mcp") is None:
            raise MissingExtra("mcp", "a tool of an MCP server")
        if isinstance(args, str):
            raise UsageError(f"args takes a list of arguments, not the text {args!r}")
        self.name = name or os.path.basename(os.fspath(command))  # noqa: PTH119 - a command need not be a path
        self._process = {
            "command": os.fspath(command),
            "args": [os.fspath(each) for each in args],
            "env": None if env is None else dict(env),
            "cwd": None if cwd is None else os.fspath(cwd),
        }
        self._prefix = prefix
        self._only = None if only is None else _names(only, "only")
        self._read_only = _names(read_only, "read_only")
        self._idempotent = _names(idempotent, "idempotent")
        self._trusting = trust_annotations
        self._approval = approval if isinstance(approval, bool) else _names(approval, "approval")
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._loop: OwnLoop | None = None
        self._link: _Link | None = None
        self._lock = os.getpid(), asyncio.Lock()
        self._tools: tuple[Tool[..., Any], ...] = ()
        self._check()

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """Its tools, by name. Raises `UsageError` before it is started."""
        if self._loop is None:
            raise UsageError(
                f"MCP server {self.name!r} is not started: use it in a 'with' block, or start() it"
            )
        return self._tools

    def start(self) -> Self:
        """
        Start it and ask for its tools; `close` ends it, at the latest when this process ends.

        Raises:
            UsageError: It does not start or does not answer, or a tool that was named is not there.
            ToolDefinitionError: One of its tools cannot be a tool here.
        """
        if self._loop is not None:
            return self
        loop = OwnLoop(f"refold mcp {self.name}", self._unlink)
        try:
            listed = loop.wait(self._linked()).listed
            tools = tuple(self._tool(each) for each in self._chosen(listed))
        except BaseException as error:
            loop.close()
            if isinstance(error, _NotStarted):
                raise UsageError(str(error)) from None
            raise
        self._loop, self._tools = loop, tools
        atexit.register(self.close)
        return self

    def close(self) -> None:
        """End it. A call under way is of unknown effect then, and one that comes later does not happen."""
        atexit.unregister(self.close)
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.close))

    # Its tools

    def _named(self) -> dict[str, frozenset[str]]:
        """The tools that each option names."""
        named = {"only": self._only, "read_only": self._read_only, "idempotent": self._idempotent}
        if not isinstance(self._approval, bool):
            named["approval"] = self._approval
        return {option: names for option, names in named.items() if names is not None}

    def _check(self) -> None:
        """What is said of its tools, as far as that can be known before they are listed."""
        if not is_time(self._start_timeout_s):
            raise UsageError(
                f"start_timeout_s is a finite number of seconds over 0, not {self._start_timeout_s!r}"
            )
        named = self._named()
        for option, names in named.items():
            left_out = sorted(names - self._only) if self._only is not None else []
            if left_out:
                raise UsageError(
                    f"MCP server {self.name!r}: {option}= names {left_out[0]!r}, which only= leaves out"
                )
        for each in sorted(frozenset().union(*named.values())) or ["any"]:
            self._made(each, _Passed.of(each))

    def _chosen(self, listed: Mapping[str, Any]) -> list[Any]:
        """The tools to use, in an order that does not depend on the server."""
        for option, names in self._named().items():
            for each in sorted(names - listed.keys()):
                there = ", ".join(sorted(listed)) or "none"
                raise UsageError(
                    f"MCP server {self.name!r} has no tool named {each!r} ({option}=); its tools are: {there}"
                )
        return [listed[each] for each in sorted(listed) if self._only is None or each in self._only]

    def _tool(self, listed: Any) -> Tool[..., Any]:
        hints = listed.annotations if self._trusting else None
        signature = _Passed.made(listed.name, listed.input_schema)
        return self._made(listed.name, signature, hints, listed.description or "")

    def _made(
        self, tool: str, signature: _Passed, hints: Any = None, description: str = ""
    ) -> Tool[..., Any]:
        read_only = tool in self._read_only or bool(hints and hints.read_only_hint)
        idempotent = tool in self._idempotent or bool(hints and hints.idempotent_hint)
        additive = hints is not None and hints.destructive_hint is False
        policy: ports.InDoubt = "retry" if read_only or idempotent else "tell_model" if additive else "park"

        async def function(**given: Any) -> Any:
            context: ports.ToolContext = given.pop(_CONTEXT)
            return await self._call(tool, given, context.idempotency_key)

        approval = self._approval if isinstance(self._approval, bool) else tool in self._approval
        name = _UNFIT.sub("_", self._prefix + tool)
        return checked(
            Tool(
                name=name,
                description=description,
                function=function,
                read_only=read_only,
                idempotent=idempotent,
                transactional=False,
                in_doubt=policy,
                reconciler=None,
                approval=approval,
                timeout_s=self._timeout_s,
                idle_timeout_s=None,
                retries=0,
                signature=structs.replace(signature, tool=name),
            )
        )

    # Calls, from whichever event loop

    async def _call(self, tool: str, arguments: dict[str, Any], key: str) -> Any:
        if self._loop is None:
            raise ToolError(f"MCP server {self.name!r} is closed", error_type="McpServerClosed")
        return await self._loop.run(self._ask(tool, arguments, key))

    async def _ask(self, tool: str, arguments: dict[str, Any], key: str) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, CallToolResult

        try:
            link = await self._linked()
        except _NotStarted as error:
            raise ToolError(str(error), error_type="McpServerNotStarted") from None
        if tool not in link.listed:
            raise ToolError(
                f"MCP server {self.name!r} has no tool {tool!r} any more", error_type="McpToolGone"
            )
        try:
            result = await link.client.session.call_tool(
                tool, arguments, meta={KEY_META: key}, allow_input_required=True
            )
        except MCPError as error:
            ended = error.code == CONNECTION_CLOSED
            why = "ended in the middle of the call" if ended else f"answered: {error.message}"
            raise McpCallFailed(f"MCP server {self.name!r} {why}") from None
        except RuntimeError as error:
            # The client's own check of a result against the schema that the server had promised.
            raise ToolError(str(error), error_type="McpResultUnfit", effect="done") from None
        if not isinstance(result, CallToolResult):
            raise McpCallFailed(
                f"tool {tool!r} asks for something that only a person at a terminal could give"
            )
        return read_result(result)

    # The process, on the own loop

    async def _linked(self) -> _Link:
        if self._lock[0] != os.getpid():
            # In a forked child the process belongs to the parent.
            self._lock, self._link = (os.getpid(), asyncio.Lock()), None
        async with self._lock[1]:
            if self._link is None or self._link.over:
                await self._unlink()
                link = _Link(self._process)
                try:
                    async with asyncio.timeout(self._start_timeout_s):
                        await link.open()
                except TimeoutError:
                    await link.close()
                    raise _NotStarted(
                        f"MCP server {self.name!r} did not answer within {self._start_timeout_s:g} s"
                    ) from None
                except Exception as error:  # noqa: BLE001 - a process, a pipe or a protocol that fails: no server
                    raise _NotStarted(
                        f"MCP server {self.name!r} did not start: {_innermost(error)}"
                    ) from None
                self._link = link
            return self._link

    async def _unlink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class _NotStarted(Exception):
    """The server is not there, so nothing has happened."""


class _Link:
    """One process of the server, from its start to its end."""

    def __init__(self, process: Mapping[str, Any]) -> None:
        self.client: Any = None
        self.listed: dict[str, Any] = {}
        self.over = False
        """Whether it has ended, as far as anybody knows."""
        self._process = process
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start it and ask for its tools."""
        self._task = asyncio.get_running_loop().create_task(self._hold())
        await asyncio.shield(self._ready)

    async def close(self) -> None:
        """End it."""
        self.over = True
        self._closing.set()
        if self._task is not None:
            if not self._ready.done():
                self._task.cancel()
            await asyncio.wait({self._task})

    async def _hold(self) -> None:
        """The client is entered and left in one task, as it demands."""
        from mcp import Client

        try:
            async with Client(self._transport()) as self.client:
                self.listed = {each.name: each for each in await self._list()}
                self._ready.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()
            if not isinstance(error, Exception):
                raise
        finally:
            self.over = True

    async def _list(self) -> list[Any]:
        listed: list[Any] = []
        cursor = None
        for _ in range(PAGES_MAX):
            page = await self.client.list_tools(cursor=cursor)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return listed

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        from mcp import StdioServerParameters, stdio_client

        async with stdio_client(StdioServerParameters(**self._process)) as (read, write):
            yield _Watched(read, self), write


class _Watched:
    """What a server says; its end is noted, so that no call is sent to a process that is gone."""

    def __init__(self, stream: Any, link: _Link) -> None:
        self._stream = stream
        self._link = link

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._link.over = True
            raise

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> Any:
        return await self._stream.__aexit__(*exc)


class _Passed(Signature, frozen=True, eq=False, kw_only=True):
    """The server's own schema, handed on as it is; arguments are checked against it and not converted."""

    validator: Any = None

    @classmethod
    def made(cls, tool: str, schema: dict[str, Any]) -> _Passed:
        from jsonschema.validators import validator_for
        from referencing import Registry

        # A registry of its own: nothing is fetched, whatever a schema refers to.
        validator = validator_for(schema)(schema, registry=Registry())
        return cls.of(tool, codec.encode(schema, what=f"schema of tool {tool!r}"), validator)

    @classmethod
    def of(cls, tool: str, schema: bytes = b"{}", validator: Any = None) -> _Passed:
        return cls(
            tool=tool,
            parameters=(),
            contexts=(_CONTEXT,),
            returns=Any,
            binding=inspect.Signature(),
            schema=schema,
            validator=validator,
        )

    def convert(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """*args* as they are. Raises `ToolError` if they do not fit."""
        try:
            wrong = [f"{each.json_path}: {each.message}" for each in self.validator.iter_errors(args)]
        except Exception:  # noqa: BLE001 - a schema that cannot be read is its server's affair
            wrong = []
        if wrong:
            raise invalid(self.tool, "; ".join(wrong))
        return dict(args)


def read_result(result: Any) -> Any:
    """
    What is recorded of a tool's result.

    Structured content as it is; else, if there are only texts, the texts, one a line. A result with other blocks
    (images, links ...) is recorded as the protocol writes it: `content`, and `structuredContent` if there is any.

    Args:
        result: A `CallToolResult`.

    Raises:
        McpCallFailed: The tool reported an error; with its texts.
    """
    texts = [block.text for block in result.content if block.type == "text"]
    if result.is_error:
        raise McpCallFailed("\n".join(texts) or "the tool reported an error")
    if len(texts) < len(result.content):
        plain: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {name: plain[name] for name in ("content", "structuredContent") if name in plain}
    if result.structured_content is not None:
        return result.structured_content
    return "\n".join(texts)


def _names(given: Any, option: str) -> frozenset[str]:
    if isinstance(given, str):
        raise UsageError(f"{option} takes a list of names, not the text {given!r}")
    names = list(given) if isinstance(given, Iterable) else [given]
    for each in names:
        if not isinstance(each, str):
            raise UsageError(f"{option} takes a list of names, not {given!r}")
    return frozenset(names)


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
