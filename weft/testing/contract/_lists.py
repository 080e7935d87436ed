"""What a store promises of lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.testing.contract._kit import (
    LEASE,
    after,
    change,
    create,
    index,
    names,
    plain,
)
from weft.thread.store import Claim, Query, Store

ODD_KEYS = ["a.b", "$", "$.a", "a[0]", 'say "hi"', "it's", "back\\slash", "", " ", "ключ", "\U0001f9f5", "a%", "a_"]


async def _cursor(store: Store, thread: str) -> int:
    """Where the page goes on that follows this thread."""
    return next(row.cursor for row in await store.list(Query()) if row.thread == thread)


@plain
class ListPromises:
    """Listing."""

    # -- listing

    async def test_a_list_is_newest_first_whatever_was_appended(self, a: Store, b: Store) -> None:
        heads = [await create(store, f"t{n}") for n, store in enumerate((a, b, a, b))]
        await change(a, heads[0], None, "one", thread="t0")
        for store in (a, b):
            assert await names(store) == ["t3", "t2", "t1", "t0"]

    async def test_pages_follow_one_another(self, a: Store) -> None:
        for n in range(7):
            await create(a, f"t{n}", index("work" if n == 3 else "session"))
        pages = [await a.list(Query(kind="session", limit=2))]
        while pages[-1]:
            pages.append(await a.list(Query(kind="session", limit=2, after=pages[-1][-1].cursor)))
        assert [[row.thread for row in page] for page in pages] == [["t6", "t5"], ["t4", "t2"], ["t1", "t0"], []]

    async def test_what_is_created_meanwhile_does_not_move_pages(self, a: Store) -> None:
        for n in range(4):
            await create(a, f"t{n}")
        cursor = await _cursor(a, "t2")
        await create(a, "t4")
        assert await names(a, Query(limit=2, after=cursor)) == ["t1", "t0"]

    async def test_a_list_stays_newest_first_when_threads_are_deleted(self, a: Store) -> None:
        heads = {f"t{n}": await create(a, f"t{n}") for n in range(3)}
        await a.delete("t0", heads["t0"])
        await create(a, "t3")
        assert await names(a) == ["t3", "t2", "t1"]
        assert await names(a, Query(after=await _cursor(a, "t3"))) == ["t2", "t1"]
        await create(a, "t0")
        assert await names(a, Query(limit=2)) == ["t0", "t3"]

    async def test_a_page_goes_on_after_a_thread_that_was_deleted(self, a: Store) -> None:
        heads = {f"t{n}": await create(a, f"t{n}") for n in range(4)}
        cursor = await _cursor(a, "t2")
        await a.delete("t2", heads["t2"])
        assert await names(a, Query(after=cursor)) == ["t1", "t0"]
        await create(a, "t2")
        assert await names(a, Query(after=cursor)) == ["t1", "t0"]

    async def test_lists_are_filtered(self, a: Store) -> None:
        await create(a, "t0", index(meta={"user": "ann", "team": "x"}))
        await create(a, "t1", index(meta={"user": "ann", "team": "y"}))
        await create(a, "t2", index("work", parent="t0", meta={"user": "bob"}))
        await create(a, "t3", index(parent="t0"))
        assert await names(a, Query(meta={"user": "ann"})) == ["t1", "t0"]
        assert await names(a, Query(meta={"user": "ann", "team": "y"})) == ["t1"]
        assert await names(a, Query(meta={"user": "an"})) == []
        assert await names(a, Query(meta={"user": ""})) == []
        assert await names(a, Query(meta={"color": "red"})) == []
        assert await names(a, Query(kind="work")) == ["t2"]
        assert await names(a, Query(parent="t0")) == ["t3", "t2"]
        assert await names(a, Query(parent="t0", kind="session")) == ["t3"]
        assert await names(a, Query(parent="t0", meta={"user": "bob"})) == ["t2"]
        assert await names(a, Query(parent="t1")) == []

    @pytest.mark.parametrize("key", ODD_KEYS)
    async def test_metadata_may_have_any_key_and_value(self, a: Store, key: str) -> None:
        others = {other: "1" for other in ODD_KEYS if other != key}
        await create(a, "other", index(meta=others))
        await create(a, "value", index(meta={**others, key: "2"}))
        await create(a, "found", index(meta={key: "1"}))
        assert await names(a, Query(meta={key: "1"})) == ["found"]
        await create(a, "odd", index(meta={"key": key}))
        assert await names(a, Query(meta={"key": key})) == ["odd"]

    async def test_values_are_text_and_nothing_else(self, a: Store) -> None:
        for value in ("1", "1.0", "true", "null", '"1"', "{}"):
            await create(a, value, index(meta={"v": value}))
        for value in ("1", "1.0", "true", "null", '"1"', "{}"):
            assert [row.thread for row in await a.list(Query(meta={"v": value}))] == [value]

    async def test_an_append_stores_the_index_it_brings(self, a: Store, b: Store) -> None:
        head = await create(a, of=index(meta={"state": "new"}))
        lines, then = after(head, "one")
        await a.append("t", lines, head, None, index(meta={"state": "done", "more": "yes"}))
        assert await names(b, Query(meta={"state": "new"})) == []
        assert await names(b, Query(meta={"state": "done", "more": "yes"})) == ["t"]
        await change(a, then, None, "two")
        assert await names(b, Query(meta={"state": "done"})) == ["t"]
        await a.append("t", (), (await a.load("t")).head, None, index())
        assert await names(b, Query(meta={"state": "done"})) == []

    async def test_a_row_has_the_index_as_it_was_stored(self, a: Store, b: Store) -> None:
        first = index(meta={"a.b": "ü", "": '"1"'}, title="Teapot", pending=2, unsettled=1, due=1.5)
        child = index("work", name="refunds", parent="t", root="t")
        head = await create(a, of=first)
        await create(a, "child", child)
        assert [(row.thread, row.state) for row in await b.list(Query())] == [("child", child), ("t", first)]
        later = index(meta={"x": "y"}, title=None, pending=0, unsettled=0, due=None)
        lines, then = after(head, "one")
        await a.append("t", lines, head, None, later)
        await change(a, then, Claim(ttl=LEASE), "two")
        assert [row.state for row in await b.list(Query(kind="session"))] == [later]

    async def test_lists_are_filtered_by_name(self, a: Store) -> None:
        for n, name in enumerate(("desk", "Desk", "desk ", "refunds", "desk")):
            await create(a, f"t{n}", index("work" if n == 4 else "session", name=name))
        assert await names(a, Query(name="desk")) == ["t4", "t0"]
        assert await names(a, Query(name="desk", kind="session")) == ["t0"]
        assert await names(a, Query(name="des")) == []
        assert await names(a, Query(name="")) == []

    async def test_roots_are_the_threads_without_a_parent(self, a: Store) -> None:
        for n, parent in enumerate((None, "t0", "", None)):
            await create(a, f"t{n}", index(parent=parent))
        assert await names(a, Query(roots=True)) == ["t3", "t0"]
        assert await names(a, Query(roots=True, parent="t0")) == []
        assert await names(a, Query()) == ["t3", "t2", "t1", "t0"]

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ("teapot", ["t1", "t0"]),
            ("TEAPOT", ["t1", "t0"]),
            ("pot", ["t1", "t0"]),
            ("STRASSE", ["t2"]),
            ("straße", ["t2"]),
            ("éCLAIR", ["t3"]),
            ("ΣΊΣΥΦΟΣ", ["t4"]),
            ("100%", ["t5"]),
            ("_", ["t6"]),
            ("%", ["t5"]),
            ("it's", ["t7"]),
            ("teapot?", []),
            ("eclair", []),
        ],
    )
    async def test_lists_are_filtered_by_a_part_of_the_title_in_any_case(
        self, a: Store, wanted: str, found: list[str]
    ) -> None:
        titles = ("Where is my Teapot", "a tEAPOT", "Große Straße 5", "Éclairs", "Σίσυφος", "100% off", "a_b", "It's")
        for n, title in enumerate((*titles, None, "")):
            await create(a, f"t{n}", index(title=title))
        assert await names(a, Query(title=wanted)) == found

    async def test_lists_are_filtered_by_whether_something_is_pending(self, a: Store) -> None:
        heads = [await create(a, f"t{n}", index(pending=pending)) for n, pending in enumerate((0, 1, 3, 0))]
        assert await names(a, Query(pending=True)) == ["t2", "t1"]
        assert await names(a, Query(pending=False)) == ["t3", "t0"]
        assert await names(a, Query(pending=None)) == ["t3", "t2", "t1", "t0"]
        await a.append("t1", (), heads[1], None, index(pending=0))
        await a.append("t0", (), heads[0], None, index(pending=1))
        assert await names(a, Query(pending=True)) == ["t2", "t0"]

    async def test_all_filters_go_together_and_a_page_is_of_what_they_find(self, a: Store) -> None:
        wanted = index(name="refunds", title="Straße 1", pending=1, meta={"user": "ann"})
        others = (
            replace(wanted, kind="work"),
            replace(wanted, name="desk"),
            replace(wanted, parent="t0"),
            replace(wanted, title="Strand"),
            replace(wanted, pending=0),
            replace(wanted, meta={"user": "bob"}),
        )
        for n in range(3):
            await create(a, f"t{n}", wanted)
            for place, other in enumerate(others):
                await create(a, f"t{n} {place}", other)
        query = Query(
            kind="session", name="refunds", roots=True, meta={"user": "ann"}, title="STRASSE", pending=True, limit=2
        )
        assert await names(a, query) == ["t2", "t1"]
        assert await names(a, replace(query, after=await _cursor(a, "t1"))) == ["t0"]
