"""Sessions: stored conversations that survive their process."""

from weft.thread._approvals import Decision, Request, approve, deny, resolve
from weft.thread._receipts import Receipt
from weft.thread.entries import Entry, Header
from weft.thread.memory import Memory
from weft.thread.openstore import OpenStore, Root, open_store
from weft.thread.session import Session, SessionUsage
from weft.thread.store import Head, Store
from weft.thread.turn import Turn
from weft.thread.watch import Watch

__all__ = [
    "Decision",
    "Entry",
    "Head",
    "Header",
    "Memory",
    "OpenStore",
    "Receipt",
    "Request",
    "Root",
    "Session",
    "SessionUsage",
    "Store",
    "Turn",
    "Watch",
    "approve",
    "deny",
    "open_store",
    "resolve",
]
