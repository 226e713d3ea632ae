"""A real Redis or Valkey, to be killed, flushed, frozen, filled and restored."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import redis

# Outlives a test session that is killed, and takes the server with it: at the end of its input it kills it.
_WARDEN = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
server = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
print(server.pid, flush=True)
sys.stdin.read()
server.kill()
server.wait()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RedisProcess:
    """One server of *program*; `start` again after `kill` keeps port, configuration and folder."""

    def __init__(self, program: Path, **config: str) -> None:
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="refold-redis-"))
        self.port = free_port()
        self.config = config
        self._warden: subprocess.Popen[str] | None = None
        self.pid = 0
        self.tls_port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "dir": str(self.folder),
        } | self.config
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._warden = subprocess.Popen(
            [sys.executable, "-S", "-c", _WARDEN, str(self._program), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._warden.stdout is not None
        self.pid = int(self._warden.stdout.readline())
        with self.client() as client:
            client.ping()

    def listen_tls(self, certificate: Path, key: Path) -> bool:
        """Take connections by TLS on `tls_port` too; False if this program was built without it."""
        # It has the settings in any case, and ends when it is told to use them.
        if b"SSL_CTX_new" not in self._program.read_bytes():
            return False
        self.tls_port = free_port()
        with self.client() as client:
            for name, value in {
                "tls-cert-file": certificate,
                "tls-key-file": key,
                "tls-ca-cert-file": certificate,
                "tls-auth-clients": "no",
                "tls-port": self.tls_port,
            }.items():
                client.config_set(name, str(value))
            return True

    def client(self) -> Any:
        from redis.backoff import ConstantBackoff
        from redis.retry import Retry

        patient = Retry(ConstantBackoff(0.02), 250, supported_errors=(redis.ConnectionError, OSError))
        return redis.Redis(host="127.0.0.1", port=self.port, retry=patient)

    def kill(self) -> None:
        """SIGKILL, and see it gone; what it held is gone too, unless it was saved."""
        if self._warden is not None:
            assert self._warden.stdin is not None
            assert self._warden.stdout is not None
            self._warden.stdin.close()
            assert self._warden.wait(30) == 0
            self._warden.stdout.close()
            self._warden = None

    def freeze(self) -> None:
        """SIGSTOP: it accepts connections, and never answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def flush(self) -> None:
        with self.client() as client:
            client.flushall()

    def keys(self) -> list[bytes]:
        with self.client() as client:
            return sorted(client.keys("refold:hot:*"))

    def dump(self) -> bytes:
        """All it holds, as a dump file."""
        with self.client() as client:
            client.save()
        return (self.folder / "dump.rdb").read_bytes()

    def restore(self, dump: bytes) -> None:
        """Start it again from a dump."""
        self.kill()
        (self.folder / "dump.rdb").write_bytes(dump)
        self.start()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)


class SlowProxy:
    """
    Forwards TCP to a port or a socket's path, each piece of an answer *delay_s* late, and counts the answers' bytes;
    `cut` breaks what is under way.
    """

    def __init__(
        self, upstream: int | str, delay_s: float = 0.0, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.delay_s = delay_s
        self.accepted = 0
        self.answered_bytes = 0
        self._tls = tls
        self._upstream = upstream
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections, whatever is under way on them."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                if self._tls is not None:
                    client = self._tls.wrap_socket(client, server_side=True)
                server = self._connect()
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._upstream, int):
            return socket.create_connection(("127.0.0.1", self._upstream))
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._upstream)
        return server

    def _pump(self, source: socket.socket, target: socket.socket, late: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if late and self.delay_s:
                    self._closing.wait(self.delay_s)
                if late:
                    self.answered_bytes += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            if late:
                source.close()
                target.close()
