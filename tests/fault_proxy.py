"""A TCP proxy in front of a server's socket that loses one message, or its answer, on command."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from enum import StrEnum

from psycopg.conninfo import make_conninfo

# The end of every answer: ReadyForQuery, idle.
_READY = b"Z\x00\x00\x00\x05I"


class Cut(StrEnum):
    """Where the connection breaks; to the client all three look the same."""

    BEFORE = "before"
    """The message never reaches the server."""
    DURING = "during"
    """The message reaches the server and the client is cut off at once; the backend goes on."""
    AFTER = "after"
    """The server's answer is withheld, then the client is cut off."""


class FaultProxy:
    """Forwards connections to the socket at *path*; `arm` breaks the next one that says a certain word."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._armed: list[tuple[Cut, bytes]] = []
        self._refusing = False
        self._sockets: set[socket.socket] = set()
        self._mute: set[socket.socket] = set()
        self.cut = threading.Event()
        """Set when all armed cuts have been made."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, database: str) -> str:
        """How to connect to *database* through the proxy."""
        host, port = self._listener.getsockname()
        return make_conninfo(
            "", host=host, port=port, user="refold", dbname=database, sslmode="disable", gssencmode="disable"
        )

    def arm(self, cut: Cut, word: str, *more: tuple[Cut, str]) -> None:
        """Break the connection at the next message from a client that holds *word*, once; then at *more*, in order."""
        with self._lock:
            self.cut.clear()
            self._armed = [(each, said.encode()) for each, said in ((cut, word), *more)]

    def refuse(self) -> None:
        """Cut all connections and take no new ones."""
        with self._lock:
            self._refusing = True
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)

    def mute(self) -> None:
        """Let nothing through any more on the connections there are, which stay open: their server hangs."""
        with self._lock:
            self._mute |= self._sockets

    def accept(self) -> None:
        """Take connections again."""
        with self._lock:
            self._refusing = False

    def close(self) -> None:
        """Cut everything."""
        self.refuse()
        _shut(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as upstream, contextlib.suppress(OSError):
            with self._lock:
                if self._refusing:
                    return
                self._sockets |= {client, upstream}
            try:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                upstream.connect(self._path)
                while self._forward(client, upstream):
                    pass
            finally:
                with self._lock:
                    self._sockets -= {client, upstream}
                    self._mute -= {client, upstream}

    def _forward(self, client: socket.socket, upstream: socket.socket) -> bool:
        readable, _, _ = select.select([client] if client in self._mute else [client, upstream], [], [])
        if client in self._mute:
            return client not in readable or bool(client.recv(1 << 20))
        if upstream in readable:
            data = upstream.recv(1 << 20)
            client.sendall(data)
            return bool(data)
        data = client.recv(1 << 20)
        with self._lock:
            armed = self._armed.pop(0) if self._armed and self._armed[0][1] in data else None
            last = not self._armed
        if armed is None:
            upstream.sendall(data)
            return bool(data)
        self._break(armed[0], data, client, upstream)
        if last:
            self.cut.set()
        if armed[0] is Cut.DURING:
            _swallow_answer(upstream)
        return False

    def _break(self, cut: Cut, data: bytes, client: socket.socket, upstream: socket.socket) -> None:
        if cut is not Cut.BEFORE:
            upstream.sendall(data)
        if cut is Cut.AFTER:
            _swallow_answer(upstream)
        _shut(client)


def _swallow_answer(upstream: socket.socket) -> None:
    end = b""
    while not end.endswith(_READY) and (data := upstream.recv(1 << 20)):
        end = (end + data)[-len(_READY) :]


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
