"""Stores that each break one promise, and the tests of the contract that must see it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from weft.errors import Locked, Stale
from weft.thread._codec import digest_line
from weft.thread.memory import MemoryStore, _Thread
from weft.thread.store import Appended, Claim, Head, Hold, Index, LeaseChange, Listed, Loaded, Query, Release, Seize


class Broken(MemoryStore):
    """A store that breaks a promise."""

    seen_by: ClassVar[tuple[str, ...]]
    """The tests that fail, each for at least one of its cases."""


class MakesThreadsWithoutTheirLines(Broken):
    seen_by = ("test_a_thread_is_made_with_its_lines_at_once",)

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        return super().create(thread, line, index)


class KeepsTheListOfLinesThatItWasGiven(Broken):
    seen_by = ("test_a_thread_is_made_with_its_lines_at_once",)

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def later() -> None:
            future.set_result(self._create(thread, line, index, more))

        asyncio.get_running_loop().call_soon(later)
        return future


class AddsTheLinesToWhatIsThere(Broken):
    seen_by = (
        "test_a_thread_that_is_there_takes_no_lines_of_another_create",
        "test_of_concurrent_creates_one_is_there_with_all_its_lines",
    )

    def _create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes]) -> bytes:
        there = self._data._threads.get(thread)
        if there is not None:
            there.lines.extend(more)
            there.head = Head(len(there.lines), digest_line(there.lines[-1]))
        return super()._create(thread, line, index, more)


class CreatesLate(Broken):
    seen_by = ("test_what_follows_may_be_appended_before_the_thread_is_made",)

    def create(self, thread: str, line: bytes, index: Index, more: Sequence[bytes] = ()) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def later() -> None:
            future.set_result(self._create(thread, line, index, more))

        asyncio.get_running_loop().call_soon(later)
        return future


class TellsOfNoMail(Broken):
    seen_by = ("test_a_renewal_tells_how_many_lines_each_thread_has",)

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        return dict.fromkeys(await super().renew(held), 1)


class RevivesByRenewal(Broken):
    seen_by = (
        "test_renewals",
        "test_a_renewal_does_not_revive_what_has_expired",
        "test_a_renewal_after_a_hand_off_does_nothing",
    )

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        for thread, generation in held:
            found = self._data._threads.get(thread)
            if found is not None and (found.owner, found.generation) == (self.owner, generation):
                found.expires = self._clock.now() + self.ttl
        return await super().renew(held)


class RenewsLate(Broken):
    """A renewal that has seen the lease live, and writes after the hand-off."""

    seen_by = ("test_a_renewal_that_races_a_hand_off_does_not_bring_the_lease_back",)

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        kept = await super().renew(held)
        until = {thread: self._data._threads[thread].expires for thread in kept}
        for _ in range(3):
            await asyncio.sleep(0)
        for thread, expires in until.items():
            self._data._threads[thread].expires = expires
        return kept


class RenewsAnyGeneration(Broken):
    seen_by = ("test_a_renewal_is_for_each_thread_and_generation",)

    async def renew(self, held: Sequence[tuple[str, int]]) -> dict[str, int]:
        threads = self._data._threads
        return await super().renew([(name, threads[name].generation) for name, _ in held if name in threads])


class _Changing(Broken):
    def _change(self, thread: str, found: _Thread, lease: Claim | Seize | Hold | Release) -> None:
        super()._change(thread, found, self.other(found, lease))

    def other(self, found: _Thread, lease: Claim | Seize | Hold | Release) -> Claim | Seize | Hold | Release:
        return lease


class ClaimsWhatIsLive(_Changing):
    seen_by = ("test_lease_changes", "test_twenty_expired_threads_and_eight_claimers_lose_none_and_share_none")

    def other(self, found: _Thread, lease: Claim | Seize | Hold | Release) -> Claim | Seize | Hold | Release:
        return Seize(ttl=lease.ttl, once=lease.once) if isinstance(lease, Claim) else lease


class KeepsWhatWasTakenOnce(_Changing):
    seen_by = ("test_lease_changes",)

    def other(self, found: _Thread, lease: Claim | Seize | Hold | Release) -> Claim | Seize | Hold | Release:
        return replace(lease, once=False) if isinstance(lease, Claim | Seize) else lease


class HoldsByAnyGeneration(_Changing):
    seen_by = ("test_lease_changes", "test_nothing_by_an_old_generation_although_the_owner_is_the_same")

    def other(self, found: _Thread, lease: Claim | Seize | Hold | Release) -> Claim | Seize | Hold | Release:
        return replace(lease, generation=found.generation) if isinstance(lease, Hold | Release) else lease


class ExtendsByHolding(_Changing):
    seen_by = ("test_a_hold_does_not_extend",)

    def other(self, found: _Thread, lease: Claim | Seize | Hold | Release) -> Claim | Seize | Hold | Release:
        if isinstance(lease, Hold) and (found.owner, found.generation) == (self.owner, lease.generation):
            found.expires = self._clock.now() + self.ttl
        return lease


class LooksAtTheLeaseFirst(Broken):
    seen_by = ("test_another_head_is_stale_whatever_the_lease",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        found = self._find(thread)
        if isinstance(lease, Claim) and self._live(found):
            raise Locked(thread, found.owner)
        return super()._append(thread, lines, expect, lease, index)


class ChecksTheLeaseOfMail(Broken):
    seen_by = ("test_mail_goes_under_anothers_live_lease_and_moves_the_head",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        found = self._find(thread)
        if lease is None and self._live(found) and found.owner != self.owner:
            raise Locked(thread, found.owner)
        return super()._append(thread, lines, expect, lease, index)


class WritesBeforeItRefuses(Broken):
    seen_by = ("test_a_refused_append_leaves_nothing",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        try:
            return super()._append(thread, lines, expect, lease, index)
        except (Locked, Stale):
            self._find(thread).lines.extend(lines[:1])
            raise


class ReadsLinesAndHeadApart(Broken):
    """Something may come between them."""

    seen_by = ("test_what_is_loaded_is_of_one_moment",)

    async def load(self, thread: str, after: int = 0) -> Loaded:
        lines = (await super().load(thread, after)).lines
        await asyncio.sleep(0)
        return (await super().load(thread, after))._replace(lines=lines)


class WritesLineByLine(Broken):
    seen_by = ("test_what_is_loaded_is_of_one_moment",)

    def append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> asyncio.Future[Appended]:
        async def write() -> Appended:
            added = await super(WritesLineByLine, self).append(thread, lines[:1], expect, lease, index)
            for line in lines[1:]:
                await asyncio.sleep(0)
                added = await super(WritesLineByLine, self).append(thread, [line], added.head, None, None)
            return added

        return asyncio.ensure_future(write())


class TidiesLongLines(Broken):
    seen_by = ("test_lines_come_back_byte_for_byte",)

    async def load(self, thread: str, after: int = 0) -> Loaded:
        loaded = await super().load(thread, after)
        return loaded._replace(lines=[line.replace(b"g long", b"g  long", 7_000) for line in loaded.lines])


class KeepsWhatItHasRead(Broken):
    """Although others write as well."""

    seen_by = ("test_what_others_write_is_seen_by_a_store_that_has_read_before",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._read: dict[str, Loaded] = {}

    async def load(self, thread: str, after: int = 0) -> Loaded:
        read = self._read.setdefault(thread, await super().load(thread))
        return read._replace(lines=read.lines[after:])


class TakesTheLeaseBeforeItLooksAtTheHead(Broken):
    seen_by = ("test_a_stale_append_leaves_the_lease_as_it_was",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        if lease is not None:
            self._change(thread, self._find(thread), lease)
        return super()._append(thread, lines, expect, None, index)


class ChangesTheLeaseWhateverTheHead(Broken):
    """Where there is no line to chain to it."""

    seen_by = ("test_another_head_is_stale_whatever_the_lease",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        return super()._append(thread, lines, expect if lines else self._find(thread).head, lease, index)


class ComparesDigestsOnly(Broken):
    seen_by = ("test_a_head_is_both_its_count_and_its_digest",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        head = self._find(thread).head
        return super()._append(thread, lines, head if expect.digest == head.digest else expect, lease, index)


class ComparesCountsOnly(Broken):
    seen_by = ("test_a_head_is_both_its_count_and_its_digest", "test_another_head_is_stale_whatever_the_lease")

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        head = self._find(thread).head
        return super()._append(thread, lines, head if expect.count == head.count else expect, lease, index)


class ReleasesWithoutTheIndex(Broken):
    seen_by = ("test_lease_changes",)

    def _append(
        self, thread: str, lines: Sequence[bytes], expect: Head, lease: LeaseChange, index: Index | None
    ) -> Appended:
        return super()._append(thread, lines, expect, lease, None if isinstance(lease, Release) else index)


class _Listing(Broken):
    async def list(self, query: Query) -> list[Listed]:
        return await super().list(self.asked(query))

    def asked(self, query: Query) -> Query:
        return query


class ListsEveryName(_Listing):
    seen_by = ("test_lists_are_filtered_by_name", "test_all_filters_go_together_and_a_page_is_of_what_they_find")

    def asked(self, query: Query) -> Query:
        return replace(query, name=None)


class ListsChildrenWithRoots(_Listing):
    seen_by = (
        "test_roots_are_the_threads_without_a_parent",
        "test_all_filters_go_together_and_a_page_is_of_what_they_find",
    )

    def asked(self, query: Query) -> Query:
        return replace(query, roots=False)


class ListsWhatWaitsForNobody(_Listing):
    seen_by = (
        "test_lists_are_filtered_by_whether_something_is_pending",
        "test_all_filters_go_together_and_a_page_is_of_what_they_find",
    )

    def asked(self, query: Query) -> Query:
        return replace(query, pending=None)


class LowersTitles(Broken):
    seen_by = ("test_lists_are_filtered_by_a_part_of_the_title_in_any_case",)

    async def list(self, query: Query) -> list[Listed]:
        wanted = "" if query.title is None else query.title.lower()
        rows = await super().list(replace(query, title=None))
        return [row for row in rows if wanted in (row.state.title or "").lower()]


class ForgetsTheState(Broken):
    seen_by = ("test_a_row_has_the_index_as_it_was_stored",)

    async def list(self, query: Query) -> list[Listed]:
        return [row._replace(state=replace(row.state, due=None)) for row in await super().list(query)]


class ScansByOrderOnly(Broken):
    seen_by = ("test_a_scan_gives_every_line_by_its_position",)

    async def scan(self, thread: str) -> dict[int, bytes]:
        return dict(enumerate(list((await super().scan(thread)).values()), 1))


BROKEN: tuple[type[Broken], ...] = (
    MakesThreadsWithoutTheirLines,
    KeepsTheListOfLinesThatItWasGiven,
    AddsTheLinesToWhatIsThere,
    CreatesLate,
    TellsOfNoMail,
    RevivesByRenewal,
    RenewsLate,
    RenewsAnyGeneration,
    ClaimsWhatIsLive,
    KeepsWhatWasTakenOnce,
    HoldsByAnyGeneration,
    ExtendsByHolding,
    LooksAtTheLeaseFirst,
    ChecksTheLeaseOfMail,
    WritesBeforeItRefuses,
    ReadsLinesAndHeadApart,
    WritesLineByLine,
    TidiesLongLines,
    KeepsWhatItHasRead,
    TakesTheLeaseBeforeItLooksAtTheHead,
    ChangesTheLeaseWhateverTheHead,
    ComparesDigestsOnly,
    ComparesCountsOnly,
    ReleasesWithoutTheIndex,
    ListsEveryName,
    ListsChildrenWithRoots,
    ListsWhatWaitsForNobody,
    LowersTitles,
    ForgetsTheState,
    ScansByOrderOnly,
)
