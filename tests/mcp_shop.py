"""
A Model Context Protocol server for tests, on its stdin and stdout, made with the official package.

What its tools do outside is a line in the file EFFECTS. The environment decides what it offers:

    EFFECTS   file that gets a line for each effect
    OFFER     file, read at the start: "changed" for another `pay`, "gone" for none at all
    HOLD      a FIFO: what has an effect tells its process id there when it has acted, and then never returns
    KEYS      file that gets a line for each call of `find`: its idempotency key
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations

server = MCPServer("shop", log_level="CRITICAL")
OFFER = Path(os.environ["OFFER"]).read_text() if "OFFER" in os.environ else ""


def write(name: str, text: str) -> bool:
    """Add a line to the file that this variable names, if it names one."""
    if name not in os.environ:
        return False
    with Path(os.environ[name]).open("a") as file:
        file.write(text + "\n")
    return True


async def acted(what: str) -> None:
    """Something has happened outside."""
    write("EFFECTS", what)
    if write("HOLD", str(os.getpid())):
        await anyio.sleep_forever()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def find(order: int, ctx: Context) -> dict[str, Any]:
    """Find an order."""
    meta = ctx.request_context.meta or {}
    write("KEYS", str(meta.get("refold/idempotency-key")))
    return {"order": order, "paid": 30}


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def mark(order: int) -> str:
    """Mark an order as seen."""
    await acted(f"mark {order}")
    return "marked"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
async def note(text: str) -> str:
    """Add a note."""
    await acted(f"note {text}")
    return "noted"


if OFFER == "changed":

    @server.tool()
    async def pay(order: int, amount: int = 0) -> str:
        """Pay an order, or a part of it."""
        await acted(f"pay {order}")
        return "paid"

elif OFFER != "gone":

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def pay(order: int) -> str:
        """Pay an order."""
        await acted(f"pay {order}")
        return "paid"


@server.tool(name="files/read.all")
async def read_all(path: str) -> CallToolResult:
    """Read a file."""
    return CallToolResult(content=[TextContent(type="text", text="one"), TextContent(type="text", text=path)])


@server.tool()
async def picture() -> Any:
    """A picture."""
    return ["look:", Image(data=b"\x89PNG", format="png")]


@server.tool()
async def refuse(order: int) -> str:
    """Always fails."""
    raise ToolError(f"there is no order {order}")


@server.tool()
async def die(order: int) -> str:
    """Ends the server in the middle of the call, after it has acted."""
    await acted(f"die {order}")
    os._exit(1)


if __name__ == "__main__":
    server.run("stdio")
