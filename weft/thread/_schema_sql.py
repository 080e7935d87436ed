"""The SQLite schema and every statement, in one place."""

from __future__ import annotations

from functools import cache

APPLICATION_ID = 0x77656674
SCHEMA = 1
"""The schema's version, in `user_version`. Migrations go forward only."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE threads (
            tid INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            count INTEGER NOT NULL,
            digest TEXT NOT NULL,
            owner TEXT,
            generation INTEGER NOT NULL DEFAULT 0,
            expires REAL NOT NULL DEFAULT 0,
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            parent TEXT,
            root TEXT NOT NULL,
            meta TEXT NOT NULL,
            title TEXT,
            pending INTEGER NOT NULL DEFAULT 0,
            unsettled INTEGER NOT NULL DEFAULT 0,
            due REAL
        ) STRICT
        """,
        """
        CREATE TABLE lines (
            tid INTEGER NOT NULL,
            n INTEGER NOT NULL,
            line TEXT NOT NULL,
            PRIMARY KEY (tid, n)
        ) STRICT, WITHOUT ROWID
        """,
        "CREATE INDEX threads_parent ON threads (parent) WHERE parent IS NOT NULL",
        "CREATE INDEX threads_owner ON threads (owner) WHERE owner IS NOT NULL",
        "CREATE INDEX threads_due ON threads (due) WHERE due IS NOT NULL",
    ),
)

_INDEX = ", meta = :meta, title = :title, pending = :pending, unsettled = :unsettled, due = :due"
_CHANGES = {
    "mail": ("", ""),
    "claim": (
        ", owner = :owner, generation = generation + 1, expires = :expires",
        " AND (owner IS NULL OR expires <= :now)",
    ),
    "seize": (", owner = :owner, generation = generation + 1, expires = :expires", ""),
    "hold": ("", " AND owner = :me AND generation = :generation"),
    "hand_off": (", expires = 0", " AND owner = :me AND generation = :generation"),
    "release": (", owner = NULL", " AND owner = :me AND generation = :generation"),
}


@cache
def append_statement(change: str, *, index: bool) -> str:
    """Checks head and lease and moves both, in one statement; no row means refused."""
    sets, where = _CHANGES[change]
    return (
        f"UPDATE threads SET count = :count, digest = :digest{sets}{_INDEX if index else ''} "  # noqa: S608  # constants
        f"WHERE id = :id AND count = :old_count AND digest = :old_digest{where} RETURNING tid, generation"
    )


CREATE = (
    "INSERT INTO threads (id, count, digest, kind, name, parent, root, meta, title, pending, unsettled, due) "
    "VALUES (:id, :count, :digest, :kind, :name, :parent, :root, :meta, :title, :pending, :unsettled, :due) "
    "ON CONFLICT (id) DO NOTHING RETURNING tid"
)
INSERT_LINE = "INSERT INTO lines (tid, n, line) VALUES (?, ?, ?)"
STATE = "SELECT tid, count, digest, owner, generation, expires FROM threads WHERE id = ?"
LOAD = (  # one statement, so one snapshot; beside the first line stands what is said once, in one column
    "SELECT CASE WHEN n IS NULL OR n = :after THEN json_array(count, digest, owner, generation, expires > :now) END, "
    "CAST(line AS BLOB) FROM threads LEFT JOIN lines ON lines.tid = threads.tid AND n >= :after "
    "WHERE id = :id ORDER BY n"
)
ONE_LINE = "SELECT line FROM lines WHERE tid = (SELECT tid FROM threads WHERE id = ?) AND n = ?"
SCAN = "SELECT n, CAST(line AS BLOB) FROM lines WHERE tid = ? AND n >= ? ORDER BY n LIMIT ?"
SUSPECTS = (
    "SELECT n, CAST(line AS BLOB) FROM lines WHERE tid = (SELECT tid FROM threads WHERE id = ?) AND n >= ? ORDER BY n"
)
DELETE_LINES = "DELETE FROM lines WHERE tid = ?"
DELETE_THREAD = "DELETE FROM threads WHERE tid = ?"
OWNERS = "SELECT DISTINCT owner FROM threads WHERE owner IS NOT NULL"
EXPIRE_OWNER = "UPDATE threads SET expires = 0 WHERE owner = ?"
RENEW = "UPDATE threads SET expires = ? WHERE id = ? AND owner = ? AND generation = ? AND expires > ? RETURNING count"
_LIST = (
    "SELECT id, (SELECT CAST(line AS BLOB) FROM lines WHERE lines.tid = threads.tid AND n = 0), tid, "
    "CAST(kind AS BLOB), CAST(name AS BLOB), CAST(parent AS BLOB), CAST(root AS BLOB), CAST(meta AS BLOB), "
    "CAST(title AS BLOB), pending, unsettled, due FROM threads "
    "WHERE (:kind IS NULL OR kind = :kind) AND (:name IS NULL OR name = :name) "
    "AND {parent} AND (NOT :roots OR parent IS NULL) "
    "AND (:pending IS NULL OR (pending > 0) = :pending) "
    "AND (:title IS NULL OR instr(casefold(CAST(coalesce(title, '') AS BLOB)), :title)) "
    "AND (:after IS NULL OR tid < :after) "
    "AND NOT EXISTS (SELECT 1 FROM json_each(:meta) AS wanted WHERE NOT EXISTS ("
    "SELECT 1 FROM json_each(CASE WHEN json_valid(threads.meta) THEN threads.meta ELSE '{{}}' END) AS found "
    "WHERE found.key = wanted.key AND found.value = wanted.value)) "
    "ORDER BY tid DESC LIMIT :limit"
)


@cache
def list_statement(*, parent: bool) -> str:
    """Rows, newest first; those of one parent are found by an index, whatever else there is."""
    return _LIST.format(parent="parent = :parent" if parent else "TRUE")
