"""
A small OpenAI-compatible server on 127.0.0.1: the real client path, without a provider.

It answers by the content of the conversation, never by a counter of its own, so it can be restarted at any time.
A script is a JSON value (or, in process, a function from the request body to a reply):

    {"replies": [REPLY, ...]}             REPLY n answers a conversation with n assistant messages
    {"by_user": {"text": [REPLY, ...]}}   the same for conversations whose last user message is that text,
                                          counting the assistant messages after it

A REPLY is an object of any of these:

    text, calls       content, and tool calls: {"name": ..., "arguments": object or raw text, "id": text or null}
                      ("id": null sends none; without the key an id is made of the turn and the position)
    message           fields laid over the assistant message
    response          fields laid over the whole response
    finish_reason     instead of the natural one
    status, headers   of the HTTP answer
    raw               the body as text, as it is (content type text/html unless a header says otherwise)
    cut               send only so many bytes of the body, then drop the connection
    entered           a file to create when the request has come in
    hold              a file to wait for before answering (in process also a threading.Event)
    attempts          a list of REPLY: the nth time the same request comes in, by the request log, the last repeats

A request with "stream": true is answered by the same reply as server-sent events, unless `status` or `raw` says
otherwise. Of a stream, a REPLY may also say:

    chunks            the events themselves, instead of those made of the reply
    cut_after         drop the connection after so many events
    end_after         end in good order after so many events, whether or not that is all
    hold_after        after how many events to `hold` (and to create `entered`), instead of before the answer

Run it alone with `python tests/openai_server.py --script FILE --log FILE`; it prints its base URL and ends
when its standard input is closed. Each request body is one line of the log, on disk before it is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

Reply = dict[str, Any]
Script = dict[str, Any] | Callable[[dict[str, Any]], Reply]

HOLD_S_MAX = 60.0


def read_log(path: Path) -> list[dict[str, Any]]:
    """The request bodies logged so far; a line that a kill has cut short is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.errors: list[BaseException] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        # A client that was killed or gave up is no fault of ours.
        if error is not None and not isinstance(error, ConnectionError):
            self.errors.append(error)


class OpenAIServer:
    """
    The server in this process, for use in a `with` block.

    Args:
        script: What to answer.
        log: File that gets each request body as one line; kept in memory too.
    """

    root = "/v1"

    def __init__(self, script: Script, log: Path | None = None, port: int = 0) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = [] if log is None else read_log(log)
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        """The same requests as they came in, byte for byte."""
        self._log = log
        self._lock = threading.Lock()
        self._http = _Listener(("127.0.0.1", port), _handler(self))
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}{self.root}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        if self._http.errors:
            raise AssertionError("the test's own server failed") from self._http.errors[0]

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """Record a request and choose its reply."""
        with self._lock:
            earlier = self.requests.count(body)
            self.requests.append(body)
            self.headers.append(headers)
            if self._log is not None:
                with self._log.open("a") as file:
                    file.write(json.dumps(body) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
        reply = self.script(body) if callable(self.script) else self.choose(body)
        attempts: list[Reply] = reply.get("attempts", [reply])
        return attempts[min(earlier, len(attempts) - 1)]

    def choose(self, body: dict[str, Any]) -> Reply:
        """The scripted reply to a conversation."""
        assert not callable(self.script)
        return choose(self.script, body)

    def streams(self, path: str, body: dict[str, Any]) -> bool:
        """Whether the answer is to come in pieces."""
        return body.get("stream") is True

    def whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        return build(reply, body)

    def events(self, reply: Reply, body: dict[str, Any]) -> list[bytes]:
        """The answer as server-sent events."""
        chunks = reply["chunks"] if "chunks" in reply else in_chunks(build(reply, body), body)
        return [*(sse(each) for each in chunks), b"data: [DONE]\n\n"]


def choose(script: dict[str, Any], body: dict[str, Any]) -> Reply:
    """The scripted reply to a conversation."""
    messages = body.get("messages", [])
    users = [position for position, message in enumerate(messages) if message.get("role") == "user"]
    text = messages[users[-1]].get("content") if users else None
    if isinstance(text, list):
        text = "".join(part.get("text", "") for part in text)
    replies, counted = script.get("by_user", {}).get(text), messages[users[-1] :] if users else messages
    if replies is None:
        replies, counted = script.get("replies", []), messages
    turn = sum(1 for message in counted if message.get("role") == "assistant")
    if turn < len(replies):
        reply: Reply = replies[turn]
        return reply
    why = f"the script has no reply {turn} to a conversation whose last user message is {text!r}"
    return {"status": 400, "raw": json.dumps({"error": {"message": why, "type": "invalid_request_error"}})}


def build(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    """A chat completion."""
    turn = sum(1 for message in body.get("messages", []) if message.get("role") == "assistant")
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("text")}
    calls = []
    for position, call in enumerate(reply.get("calls", [])):
        arguments = call.get("arguments", {})
        raw = (
            json.dumps(arguments) if isinstance(arguments, dict) and not call.get("as_object") else arguments
        )
        built = {
            "id": call.get("id", f"call_{turn}_{position}"),
            "type": "function",
            "function": {"name": call["name"], "arguments": raw},
            **call.get("extra", {}),
        }
        calls.append({key: value for key, value in built.items() if value is not None})
    if calls:
        message["tool_calls"] = calls
    message.update(reply.get("message", {}))
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body.get("model"),
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": reply.get("finish_reason", "tool_calls" if calls else "stop"),
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **reply.get("response", {}),
    }


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def in_pieces(text: str, size: int = 7) -> list[str]:
    """A text cut up, as models send it."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def in_chunks(whole: dict[str, Any], body: dict[str, Any]) -> list[dict[str, Any]]:
    """A chat completion as the chunks of a stream."""
    choice = whole["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
    deltas += [{key: value} for key, value in rest.items()]
    deltas += [{"content": piece} for piece in in_pieces(message.get("content") or "")]
    for index, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        deltas.append(
            {
                "tool_calls": [
                    {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
                ]
            }
        )
        pieces = in_pieces(function.get("arguments") or "")
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    head = {key: value for key, value in whole.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    chunks = [*map(chunk, deltas), chunk({}, choice["finish_reason"])]
    if whole.get("usage") and (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": whole["usage"]})
    return chunks


def _wait(hold: Any) -> None:
    if isinstance(hold, threading.Event):
        hold.wait(HOLD_S_MAX)
        return
    pause, waited_s = threading.Event(), 0.0
    while not Path(hold).exists() and waited_s < HOLD_S_MAX:
        pause.wait(0.01)
        waited_s += 0.01


def _pause(reply: Reply) -> None:
    if "entered" in reply:
        Path(reply["entered"]).touch()
    if "hold" in reply:
        _wait(reply["hold"])


def _handler(server: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            server.bodies.append(raw)
            body = json.loads(raw)
            reply = server.take(body, dict(self.headers))
            streamed = server.streams(self.path, body) and not {"raw", "status"} & reply.keys()
            if "hold_after" not in reply:
                _pause(reply)
            if streamed:
                self._stream(server.events(reply, body), reply)
                return
            headers = {
                "Content-Type": "text/html" if "raw" in reply else "application/json",
                **reply.get("headers", {}),
            }
            data = (reply["raw"] if "raw" in reply else json.dumps(server.whole(reply, body))).encode()
            self.send_response_only(reply.get("status", 200))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: reply.get("cut", len(data))])
            if "cut" in reply:
                self.close_connection = True

        def _stream(self, events: list[bytes], reply: Reply) -> None:
            # In chunks of HTTP/1.1, or a dropped connection would look like an end in good order.
            self.protocol_version = "HTTP/1.1"
            self.close_connection = True
            self.send_response_only(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            for name, value in reply.get("headers", {}).items():
                self.send_header(name, value)
            self.end_headers()
            cut, end = reply.get("cut_after"), reply.get("end_after")
            for sent, event in enumerate([*events, None]):
                if reply.get("hold_after") == sent:
                    _pause(reply)
                if cut == sent:
                    return
                if event is None or end == sent:
                    break
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def served(script: dict[str, Any], folder: Path) -> Iterator[tuple[str, Path]]:
    """The server in a process of its own; gives its base URL and its request log."""
    script_file, log = folder / "script.json", folder / "requests.jsonl"
    script_file.write_text(json.dumps(script))
    command = [sys.executable, str(Path(__file__).resolve()), "--script", str(script_file), "--log", str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), log
        finally:
            process.stdin.close()
            process.wait(10)


def main() -> None:
    """Serve until standard input is closed."""
    parser = argparse.ArgumentParser(description="An OpenAI-compatible server that answers from a script.")
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with OpenAIServer(json.loads(options.script.read_text()), options.log, options.port) as server:
        print(server.base_url, flush=True)
        while select.select([0], [], [])[0] and os.read(0, 1024):
            pass


if __name__ == "__main__":
    main()
