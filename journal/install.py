"""Setting the schema up, checking it, and checking the server it lives on. Connections are given, never made."""

from __future__ import annotations

from importlib import resources
from typing import Any

from msgspec import Struct

from .errors import StoreRefused

SCHEMA_VERSION = 2
SERVER_VERSION_MIN = 140000

_LOCK = int.from_bytes(b"refold", "big")

_SERVER = """
select current_setting('server_version_num')::int4, current_setting('server_version'),
       current_setting('fsync'), current_setting('synchronous_commit'), current_setting('server_encoding'),
       current_setting('default_transaction_isolation'), current_database()::text, current_user::text,
       pg_backend_pid()
"""

_CATALOG = """
select n.oid is not null,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
       coalesce(has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'CREATE')),
       c.oid is not null,
       coalesce(has_table_privilege(c.oid, 'SELECT'), false),
       coalesce(pg_has_role(c.relowner, 'USAGE'), false),
       coalesce(pg_get_userbyid(n.nspowner)::text, '')
  from (select 1) one
  left join pg_catalog.pg_namespace n on n.nspname = 'refold'
  left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = 'meta' and c.relkind = 'r'
"""

_META = """
select m.schema_version, m.database_id::text, s.system_identifier,
       (select d.oid::int8 from pg_catalog.pg_database d where d.datname = current_database())
  from refold.meta m, pg_control_system() s
"""

# A copy of the server that is older than what was restored into it has its name and counts from below.
_MOVED = """
select m.system_identifier <> s.system_identifier
       or coalesce((select max(e.xid) from refold.events e)
                   >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + refold.xid_base(), false)
  from refold.meta m, pg_control_system() s
"""


class Server(Struct, frozen=True):
    """What a connection says about its server."""

    version_num: int
    version: str
    fsync: str
    synchronous_commit: str
    encoding: str
    isolation: str
    database: str
    role: str
    backend_pid: int


class _Catalog(Struct, frozen=True):
    schema_there: bool
    may_use: bool
    may_create: bool
    meta_there: bool
    may_select: bool
    is_owner: bool
    owner: str


class _Meta(Struct, frozen=True):
    schema_version: int
    database_id: str
    running_on: int
    database_oid: int


def check_server(connection: Any, *, unsafe: bool) -> Server:
    """
    What the connection says about its server, if it is fit to hold a journal.

    Raises:
        StoreRefused: The server is too old, its database is not in UTF-8, or it may lose what it has
            acknowledged and *unsafe* is off.
    """
    server = Server(*connection.execute(_SERVER).fetchone())
    if server.version_num < SERVER_VERSION_MIN:
        raise StoreRefused(f"refold needs PostgreSQL 14 or newer; this server is {server.version}")
    if server.encoding != "UTF8":
        raise StoreRefused(
            f"database {server.database!r} has encoding {server.encoding}; refold needs a database in UTF8"
        )
    if not unsafe:
        for name, value in (("fsync", server.fsync), ("synchronous_commit", server.synchronous_commit)):
            if value == "off":
                raise StoreRefused(
                    f"the server has {name} = off: it can lose events it has acknowledged, and tools would run "
                    f"twice; turn {name} on, or open the journal with unsafe=True if that does not matter"
                )
    return server


def ensure_schema(connection: Any, server: Server, *, install: bool = True) -> str:
    """
    See that the schema is there, in this version, setting it up if it is not; return the database's identity.

    Safe from any number of processes at once, and inside a transaction of the caller's.

    Raises:
        StoreRefused: Rights are missing, the schema is newer than this refold, or it is not there and
            *install* is off.
    """
    catalog = _catalog(connection)
    if not catalog.meta_there:
        if not install:
            raise StoreRefused(f"database {server.database!r} has no refold schema; 'refold init' sets it up")
        catalog = _install(connection, server)
    meta = _meta(connection, catalog, server)
    if meta.schema_version != SCHEMA_VERSION:
        raise StoreRefused(
            f"database {server.database!r} has version {meta.schema_version} of the refold schema, this refold "
            f"knows version {SCHEMA_VERSION}; "
            + (
                "upgrade refold"
                if meta.schema_version > SCHEMA_VERSION
                else "export its threads with the refold that set it up, and import them into a new database"
            )
        )
    if _moved(connection):
        _adopt(connection, catalog, server)
    return f"{meta.database_id}-{meta.running_on}-{meta.database_oid}"


def schema_sql() -> str:
    """The text of `schema.sql`, as installed with the package."""
    package = __package__.rpartition(".")[0]
    return resources.files(package).joinpath("schema.sql").read_text(encoding="utf-8")


def _catalog(connection: Any) -> _Catalog:
    return _Catalog(*connection.execute(_CATALOG).fetchone())


def _meta(connection: Any, catalog: _Catalog, server: Server) -> _Meta:
    if not catalog.may_use or not catalog.may_select:
        raise StoreRefused(
            f"role {server.role!r} may not use the schema refold of database {server.database!r}; let its owner "
            f"run: select refold.allow('{server.role}')  (owner: {catalog.owner})"
        )
    row = connection.execute(_META).fetchone()
    if row is None:
        raise StoreRefused(
            f"the refold schema of database {server.database!r} was set up only in part (refold.meta is empty); "
            "restore it, or drop the schema if it holds nothing of value"
        )
    return _Meta(*row)


def _install(connection: Any, server: Server) -> _Catalog:
    with connection.transaction():
        # Set-up is rare, so all of it waits in one line; IF NOT EXISTS alone fails when two do it at once.
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        catalog = _catalog(connection)
        if catalog.meta_there:
            return catalog
        if not catalog.may_create:
            where = "schema refold" if catalog.schema_there else f"database {server.database!r}"
            raise StoreRefused(
                f"the refold schema is missing and role {server.role!r} may not create it in {where}; let somebody "
                f"who may run 'refold init' and then: select refold.allow('{server.role}')"
            )
        connection.execute(schema_sql())
    return _catalog(connection)


def _moved(connection: Any) -> bool:
    """Whether the stored transaction ids are another server's, or of a time that this one has yet to reach."""
    return bool(connection.execute(_MOVED).fetchone()[0])


def _adopt(connection: Any, catalog: _Catalog, server: Server) -> None:
    if not catalog.is_owner:
        raise StoreRefused(
            f"database {server.database!r} was moved here from another server, or from a later state of this one, "
            "and its feed must be carried over once; let its owner run: select refold.adopt_server()  "
            f"(owner: {catalog.owner})"
        )
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        if _moved(connection):
            connection.execute("select refold.adopt_server()")
