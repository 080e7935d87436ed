"""Proof of life, and of death, on one machine: a locked file for each open store."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def _path(database: Path, owner: str) -> Path:
    token = hashlib.sha256(owner.encode()).hexdigest()[:24]
    return database.with_name(f"{database.name}-{token}.alive")


class ProofOfLife:
    """A file beside the database, locked for as long as this store is open.

    The lock goes with the process, however it ends. `flock`, not `fcntl` locks: those vanish when any
    descriptor of the file is closed in the process. Never on the database file.
    """

    def __init__(self, database: Path, owner: str) -> None:
        self._path = _path(database, owner)
        self._descriptor: int | None = None

    def begin(self) -> None:
        """Create and lock the file."""
        if sys.platform == "win32":  # no flock: leases simply run out
            return
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def end(self) -> None:
        """Remove and unlock it."""
        if self._descriptor is None:
            return
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None


def proved_dead(database: Path, owner: str) -> bool:
    """True if the owner's file is there and nobody holds its lock. A missing file proves nothing."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(_path(database, owner), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def forget_dead(database: Path, owner: str) -> None:
    """Remove the file of an owner whose leases have all been expired."""
    with suppress(OSError):
        _path(database, owner).unlink()
