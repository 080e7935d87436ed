"""Proof of life, and of death, on one machine: a locked file for each open store."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_TRIES = 200
_PAUSE = 0.005
"""How often, and after how many seconds, a lock is tried: who looks whether an owner lives has it for a moment."""


def file_of(database: Path, owner: str) -> Path:
    """Where an owner's file is."""
    token = hashlib.sha256(owner.encode()).hexdigest()[:24]
    return database.with_name(f"{database.name}-{token}.alive")


class ProofOfLife:
    """A file beside the database, locked for as long as this store is open.

    The lock goes with the process, however it ends. `flock`, not `fcntl` locks: those vanish when any
    descriptor of the file is closed in the process. Never on the database file.
    """

    def __init__(self, database: Path, owner: str) -> None:
        self._path = file_of(database, owner)
        self._descriptor: int | None = None
        self._kept = False
        """The file was left where it is, unlocked."""

    def begin(self) -> None:
        """Create and lock the file.

        Raises:
            BlockingIOError: Another open store has this token.
        """
        if sys.platform == "win32":  # no flock: leases simply run out
            return
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                _lock(descriptor)
                if _is_there(self._path, descriptor):  # else somebody has cleaned it up before it was locked
                    self._descriptor = descriptor
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def end(self, *, keep: bool = False) -> None:
        """Unlock it, and remove it; unless it is to prove that this owner, who may hold leases still, is dead.

        What was kept is removed by a later call, when it has nothing to prove any more.
        """
        if self._descriptor is not None:
            if not keep:
                with suppress(FileNotFoundError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        elif self._kept and not keep:
            forget_dead(self._path)
        self._kept = keep


def _lock(descriptor: int) -> None:
    pause = threading.Event()
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            pause.wait(_PAUSE)
        else:
            return


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def left_behind(database: Path) -> list[Path]:
    """The files of owners that are dead; whoever holds leases among them must be expired before they go."""
    ours = re.compile(re.escape(database.name) + r"-[0-9a-f]{24}\.alive")
    return [path for path in database.parent.iterdir() if ours.fullmatch(path.name) and _unlocked(path)]


def proved_dead(database: Path, owner: str) -> bool:
    """True if the owner's file is there and nobody holds its lock. A missing file proves nothing."""
    return _unlocked(file_of(database, owner))


def _unlocked(path: Path, then: Callable[[int], None] = lambda _: None) -> bool:
    """Whether nobody holds the file's lock; `then` is called while this process does."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not hide the death
        then(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def forget_dead(path: Path) -> None:
    """Remove the file of an owner whose leases have all been expired."""

    def remove(descriptor: int) -> None:  # under the lock: who begins meanwhile sees that its file is gone
        if _is_there(path, descriptor):
            path.unlink()

    _unlocked(path, remove)
