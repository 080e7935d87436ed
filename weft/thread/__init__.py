"""Sessions: stored conversations that survive their process."""

from weft.thread._approvals import Decision, Request, approve, deny, resolve
from weft.thread._listing import ThreadInfo
from weft.thread._receipts import Receipt
from weft.thread._upkeep import Fault, Salvaged, Verified
from weft.thread.entries import Entry, Header
from weft.thread.memory import Memory
from weft.thread.openstore import OpenStore, Root, open_store
from weft.thread.session import PathEntry, Session, SessionNote, SessionUsage
from weft.thread.store import Head, Store
from weft.thread.turn import Turn
from weft.thread.watch import Watch

__all__ = [
    "Decision",
    "Entry",
    "Fault",
    "Head",
    "Header",
    "Memory",
    "OpenStore",
    "PathEntry",
    "Receipt",
    "Request",
    "Root",
    "Salvaged",
    "Session",
    "SessionNote",
    "SessionUsage",
    "Store",
    "ThreadInfo",
    "Turn",
    "Verified",
    "Watch",
    "approve",
    "deny",
    "open_store",
    "resolve",
]
