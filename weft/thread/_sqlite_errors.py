"""What SQLite's errors mean here, in words that hold nothing of what is stored."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from weft.errors import StoreFailed

FORKED = "the store was opened before a fork; open it in this process"


def failed(cause: Exception) -> StoreFailed:
    """That something could not be written, or that it is not known to have been."""
    failure = StoreFailed(f"the store could not write: {_why(cause)}{whose(cause)}")
    failure.__cause__ = cause
    return failure


def unreadable(path: Path, what: str, error: Exception) -> StoreFailed:
    """That something could not be read."""
    way = "; go back to a backup" if is_damaged(error) else ""
    return StoreFailed(f"the store could not read {what} in {path.name!r}: {_why(error)}{way}")


def is_damaged(error: Exception) -> bool:
    """Whether the file itself is broken."""
    return isinstance(error, sqlite3.DatabaseError) and _code(error) == sqlite3.SQLITE_CORRUPT


def is_read_only(error: sqlite3.DatabaseError) -> bool:
    """Whether the file, or its folder, is not to be written."""
    return _code(error) == sqlite3.SQLITE_READONLY


def way_out(error: sqlite3.DatabaseError) -> str:
    """What to do about a file that cannot be opened."""
    if is_damaged(error):
        return "go back to a backup, or try `.recover` of SQLite's shell"
    if is_read_only(error):
        return "it must be writable, and so must its folder"
    return "is it another program's file?"


def whose(error: Exception) -> str:
    """Where another program stands in the way, that it does."""
    return "; another program keeps it locked" if isinstance(error, sqlite3.OperationalError) and busy(error) else ""


def busy(error: sqlite3.OperationalError) -> bool:
    """Whether it may pass: somebody else has the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _why(error: Exception) -> str:
    return str(error).partition(" with text ")[0]  # what is stored stays out of errors


def _code(error: sqlite3.Error) -> int:
    """SQLite's own code; 0 for what Python's module raises by itself, as for text that does not decode."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
