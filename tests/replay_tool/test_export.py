"""Threads to files and back: the same bytes, any change noticed, nothing mixed up."""

from __future__ import annotations

import gzip
import io
import os
import re
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from appends import Pen, event
from msgspec import structs
from refold import Agent, ScriptedModel, tool
from refold.agent.scripted import call
from refold.journal import export
from refold.journal.envelope import GENESIS, Event, NewEvent, chain
from refold.journal.errors import Corrupt, StoreUnavailable, ThreadsDiffer, ThreadSealed, UsageError
from refold.journal.journal import Journal
from refold.journal.memory import MemoryStore
from refold.journal.packed import SEAL_BYTES, packing
from refold.journal.store import ThreadState
from refold.journal.thread_file import Header, read_threads, write_thread
from refold.journal.verify import verify_file
from refold.replay import rebuild
from refold.replay.runner import read_all

ODD_BODIES = [
    b"",
    b"{}",
    b' {"a":1}',
    b'{"a":1} ',
    b'{"a":\n1}',
    b"\x00\xff",
    b'{"a":1e400}',
    b'{"a":12345678901234567890123}',
    '{"ü":"€\\u2028"}'.encode(),
    b'"\xed\xa0\x80"',
    b"[" * 2000,
    b'{"a":1}{"b":2}',
    b"nul",
]


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


agent = Agent("payer", model=ScriptedModel([call("pay", amount=3), "Paid.", *["Again."] * 5]), tools=[pay])


async def record(journal: Journal, thread: str = "t") -> None:
    await agent.run("Pay 3", journal=journal, thread=thread)
    await agent.run("And?", journal=journal, thread=thread)


async def test_a_thread_comes_back_with_the_same_bytes_and_hashes(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    """Export, import into an empty journal, replay: head hashes are equal, and it is resumed only once adopted."""
    await record(memory)
    file = tmp_path / "t.jsonl"

    (out,) = export.export_file(memory, ["t"], file)
    (taken,) = export.import_file(journal, file)

    assert (taken.thread, taken.events, taken.added, taken.sealed) == ("t", out.events, out.events, True)
    assert journal.info("t").head_hash.hex() == out.head_hash == memory.info("t").head_hash.hex()
    assert [structs.replace(e, fence=0) for e in read_all(memory, "t")] == read_all(journal, "t")
    rebuild.replay(agent.program, "t", read_all(journal, "t"))
    with pytest.raises(ThreadSealed, match="imported and is sealed"):
        await agent.run("More", journal=journal, thread="t")
    assert journal.info("t").head == out.events
    (again,) = export.import_file(journal, file, adopt=True)
    assert (again.added, again.sealed) == (0, False)
    assert (await agent.run("Pay 3", journal=journal, thread="t", key="k")).status == "finished"


async def test_exports_are_the_same_bytes_each_time_from_each_store(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    await record(memory)
    export.export_file(memory, ["t"], tmp_path / "one.jsonl.gz")
    export.export_file(memory, ["t"], tmp_path / "two.jsonl.gz")
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()

    export.import_file(journal, tmp_path / "one.jsonl.gz")
    export.export_file(journal, ["t"], tmp_path / "three.jsonl")
    export.import_file(memory, tmp_path / "three.jsonl", name="copy")
    assert memory.info("copy").head_hash == memory.info("t").head_hash


def filed(bodies: list[bytes]) -> bytes:
    """A file of one thread with these bodies."""
    previous, events = GENESIS, []
    for seq, body in enumerate(bodies, 1):
        new = NewEvent(event().id, "odd", 1, body)
        previous = chain(previous, seq, new)
        events.append(Event("t", seq, new.id, "odd", 1, 7, 1_700_000_000_000_000 + seq, previous, body))
    out = io.BytesIO()
    write_thread(Header(1, "t", len(events), previous.hex(), ThreadState.IDLE), events, out)
    return out.getvalue()


def bodies_of(data: bytes) -> list[bytes]:
    return [each.body for thread in read_threads(io.BytesIO(data), name="f") for each in thread.events]


def test_any_bytes_survive_whether_they_are_json_or_not() -> None:
    assert bodies_of(filed(ODD_BODIES)) == ODD_BODIES


def test_one_flipped_byte_anywhere_is_found_and_named_by_its_line() -> None:
    whole = filed([b'{"a":1}', b"\x00", b'{"text":"longer"}'])
    assert len(bodies_of(whole)) == 3
    for place in range(len(whole)):
        line = whole[:place].count(b"\n") + 1
        for bit in (1, 0x20, 0x80):
            broken = bytearray(whole)
            broken[place] ^= bit
            with pytest.raises(Corrupt) as found:
                bodies_of(bytes(broken))
            assert f"line {line}:" in str(found.value), (place, bit)
            assert found.value.seq == min(line - 1, 3)
            assert found.value.thread == ("t" if line > 1 else "")


async def test_one_flipped_byte_anywhere_in_a_compressed_file_is_found(
    memory: Journal, tmp_path: Path
) -> None:
    """Gzip checks what it holds; its header, the bits between its blocks and what follows it are checked here."""
    await record(memory)
    file = tmp_path / "t.jsonl.gz"
    export.export_file(memory, ["t"], file)
    whole = file.read_bytes()
    assert gzip.decompress(whole) == gzip.decompress(whole[:-SEAL_BYTES])
    (sound,) = verify_file(file)
    assert sound.sound

    for place in range(len(whole)):
        for bit in (1, 0x80):
            broken = bytearray(whole)
            broken[place] ^= bit
            file.write_bytes(broken)
            try:
                *_, verdict = verify_file(file)
            except UsageError as error:
                # Damage right at the beginning can leave nothing that looks like an export.
                fault = str(error)
            else:
                fault = verdict.fault
            assert "t.jsonl.gz" in fault, (place, bit)
    for changed in (whole + b"\0", whole + whole, whole + b"x", *(whole[:-end] for end in range(1, 200))):
        file.write_bytes(changed)
        with pytest.raises(Corrupt, match=r"t\.jsonl\.gz"):
            export.import_file(memory, file, name="copy")
    assert [info.thread for info in memory.threads()] == ["t"]


async def test_a_file_that_another_program_compressed_is_refused_with_a_way_out(
    memory: Journal, tmp_path: Path
) -> None:
    await record(memory)
    export.export_file(memory, ["t"], tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress((tmp_path / "t.jsonl").read_bytes()))

    with pytest.raises(Corrupt, match="decompress it"):
        export.import_file(memory, tmp_path / "t.jsonl.gz", name="copy")


def test_a_file_cut_anywhere_is_found(tmp_path: Path) -> None:
    whole = filed([b"{}", b"{}"])
    for end in range(1, len(whole)):
        with pytest.raises((Corrupt, UsageError)):
            bodies_of(whole[:end])
    with pytest.raises(UsageError, match="empty"):
        bodies_of(b"")


async def test_a_damaged_file_leaves_the_journal_untouched(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    await record(memory)
    file = tmp_path / "t.jsonl.gz"
    export.export_file(memory, ["t"], file)
    packed = bytearray(file.read_bytes())
    packed[len(packed) // 2] ^= 1
    file.write_bytes(packed)
    with pytest.raises(Corrupt):
        export.import_file(journal, file)

    plain = tmp_path / "t.jsonl"
    export.export_file(memory, ["t"], plain)
    lines = plain.read_bytes().splitlines(keepends=True)
    plain.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    with pytest.raises(Corrupt, match=r"seq 5.*line 6"):
        export.import_file(journal, plain)
    assert journal.threads() == []


async def test_a_longer_copy_adds_what_is_new_and_a_shorter_one_nothing(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    await agent.run("Pay 3", journal=memory, thread="t")
    export.export_file(memory, ["t"], tmp_path / "short.jsonl")
    await agent.run("And?", journal=memory, thread="t")
    export.export_file(memory, ["t"], tmp_path / "long.jsonl")

    export.import_file(journal, tmp_path / "short.jsonl")
    (longer,) = export.import_file(journal, tmp_path / "long.jsonl")
    assert 0 < longer.added < longer.events
    (shorter,) = export.import_file(journal, tmp_path / "short.jsonl")
    assert (shorter.added, journal.info("t").head) == (0, longer.events)


async def test_another_thread_of_the_same_name_is_refused_by_the_seq_where_they_part(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    await agent.run("Pay 3", journal=memory, thread="t")
    export.export_file(memory, ["t"], tmp_path / "common.jsonl")
    common = memory.info("t").head
    await agent.run("And?", journal=memory, thread="t")
    export.export_file(memory, ["t"], tmp_path / "one.jsonl")
    with Journal.memory() as other:
        export.import_file(other, tmp_path / "common.jsonl", adopt=True)
        await agent.run("Or?", journal=other, thread="t")
        await agent.run("Or else?", journal=other, thread="t")
        export.export_file(other, ["t"], tmp_path / "two.jsonl")
    export.import_file(journal, tmp_path / "one.jsonl")

    with pytest.raises(ThreadsDiffer) as found:
        export.import_file(journal, tmp_path / "two.jsonl")
    assert found.value.seq == common + 1
    journal.adopt("t")
    (named,) = export.import_file(journal, tmp_path / "two.jsonl", name="t-two")
    assert (named.thread, named.sealed) == ("t-two", True)


async def test_a_thread_that_goes_on_here_takes_in_no_more(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    await agent.run("Pay 3", journal=memory, thread="t")
    export.export_file(memory, ["t"], tmp_path / "short.jsonl")
    await agent.run("And?", journal=memory, thread="t")
    export.export_file(memory, ["t"], tmp_path / "long.jsonl")
    export.import_file(journal, tmp_path / "short.jsonl", adopt=True)

    with pytest.raises(ThreadsDiffer, match="a writer of its own"):
        export.import_file(journal, tmp_path / "long.jsonl")


async def test_a_file_holds_many_threads(memory: Journal, journal: Journal, tmp_path: Path) -> None:
    for name in ("a", "b", "ü"):
        await record(memory, name)
    export.export_file(memory, ["a", "b", "ü"], tmp_path / "all.jsonl.gz")

    assert [each.thread for each in export.import_file(journal, tmp_path / "all.jsonl.gz")] == ["a", "b", "ü"]
    with pytest.raises(UsageError, match="3 threads"):
        export.import_file(journal, tmp_path / "all.jsonl.gz", name="c")


def test_a_file_appears_whole_or_not_at_all(memory: Journal, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("before")
    with pytest.raises(LookupError):
        export.export_file(memory, ["nope"], file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(UsageError, match="no export"):
        list(export.read_file(file))
    with pytest.raises(UsageError, match="cannot read"):
        list(export.read_file(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot write"):
        export.export_file(memory, [], tmp_path / "no" / "folder")


def test_nothing_but_a_file_is_replaced(memory: Journal, tmp_path: Path) -> None:
    """Renamed over a device or a pipe the export would take its place; a link leads to what is meant."""
    Pen(memory.store, "t").write(event())
    os.mkfifo(tmp_path / "pipe")
    for wrong in (tmp_path / "pipe", tmp_path, ""):
        with pytest.raises(UsageError, match="it is no file"):
            export.export_file(memory, ["t"], wrong)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real").write_text("before")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real")
    export.export_file(memory, ["t"], tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real").read_bytes().startswith(b'{"refold_thread":1')
    with pytest.raises(UsageError, match="a thread id is"):
        export.import_file(memory, tmp_path / "link.jsonl", name="")


def test_a_newer_format_is_told_from_damage(tmp_path: Path) -> None:
    out = io.BytesIO()
    write_thread(Header(2, "t", 0, GENESIS.hex(), ThreadState.IDLE), [], out)
    with pytest.raises(UsageError, match="has format 2"):
        bodies_of(out.getvalue())


def test_a_log_that_does_not_hold_together_is_not_exported(tmp_path: Path) -> None:
    store = MemoryStore()
    pen = Pen(store, "t")
    pen.write(*(event() for _ in range(4)))
    rows = store._threads["t"].events
    rows[2] = structs.replace(rows[2], body=b'{"changed":true}')
    with Journal(store) as journal, pytest.raises(Corrupt, match="seq 3"):
        export.export_file(journal, ["t"], tmp_path / "t.jsonl")


def test_memory_stays_flat_however_long_the_thread(tmp_path: Path) -> None:
    """20,000 events of 1 kB: 20 MB in the file, no more than a page of it in memory at a time."""

    def events() -> Iterator[Event]:
        previous = GENESIS
        for seq in range(1, 20_001):
            body = b'{"text":"' + b"x" * 1000 + b'"}'
            new = NewEvent(template.id, "k", 1, body)
            previous = chain(previous, seq, new)
            yield Event("t", seq, new.id, "k", 1, 1, seq, previous, body)

    template: Any = event()
    head = GENESIS
    for each in events():
        head = each.hash
    file = tmp_path / "t.jsonl.gz"
    tracemalloc.start()
    with file.open("w+b") as plain, packing(plain) as out:
        write_thread(Header(1, "t", 20_000, head.hex(), ThreadState.IDLE), events(), out)
    (count,) = [sum(1 for _ in thread.events) for thread in export.read_file(file)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 2_000_000


ODD_NAMES = [
    "a",
    "A",
    "..",
    ".hidden",
    "-rf",
    'a/b\\c:d*?"<>|',
    "line\nand\ttab\x1b[2J",
    "ü" * 100,
    "ü" * 99 + "v",
    "COM1 %41",
    "\u202eevil",
]


def test_each_thread_gets_a_file_of_its_own_whatever_its_name(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    for name in ODD_NAMES:
        Pen(memory.store, name).write(event())
    folder = tmp_path / "new" / "backup"

    out = list(export.export_folder(memory, ODD_NAMES, folder))

    files = sorted(each.name for each in folder.iterdir())
    assert len({each.lower() for each in files}) == len(ODD_NAMES)
    assert all(re.fullmatch(r"[A-Za-z0-9_~%][A-Za-z0-9_.~%-]*\.jsonl", each) for each in files), files
    assert max(map(len, files)) < 240
    taken = list(export.import_files(journal, [folder]))
    assert sorted(each.thread for each in taken) == sorted(ODD_NAMES)
    assert {each.thread: each.head_hash for each in out} == {
        info.thread: info.head_hash.hex() for info in export.all_threads(journal)
    }
    assert list(export.export_folder(memory, ODD_NAMES, folder)) == out
    assert sorted(each.name for each in folder.iterdir()) == files


def test_a_folder_gets_the_threads_that_hold_together_and_names_the_others(tmp_path: Path) -> None:
    store = MemoryStore()
    for name in ("a", "broken", "c"):
        Pen(store, name).write(event(), event())
    rows = store._threads["broken"].events
    rows[1] = structs.replace(rows[1], body=b"[]")
    with Journal(store) as journal:
        out = list(export.export_folder(journal, ["a", "broken", "c"], tmp_path))
    assert [(each.thread, bool(each.fault)) for each in out] == [("a", False), ("broken", True), ("c", False)]
    assert "corrupt at seq 2" in out[1].fault
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "c.jsonl"]


def test_a_folder_that_stands_where_a_threads_file_would_go_is_named_and_the_others_are_written(
    memory: Journal, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        Pen(memory.store, name).write(event())
    (tmp_path / "b.jsonl").mkdir()

    out = list(export.export_folder(memory, ["a", "b", "c"], tmp_path))

    assert [(each.thread, bool(each.fault)) for each in out] == [("a", False), ("b", True), ("c", False)]
    assert "thread 'b' was left out" in out[1].fault
    assert str(tmp_path / "b.jsonl") in out[1].fault
    assert [each.name for each in sorted(tmp_path.iterdir()) if each.is_file()] == ["a.jsonl", "c.jsonl"]


def test_an_import_adds_what_another_one_of_an_earlier_copy_leaves_while_both_are_at_it(
    memory: Journal, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen = Pen(memory.store, "t")
    pen.write(*(event() for _ in range(700)))
    export.export_file(memory, ["t"], tmp_path / "early.jsonl")
    pen.write(*(event() for _ in range(300)))
    export.export_file(memory, ["t"], tmp_path / "late.jsonl")
    admit, others = journal.store.admit, []

    def slowly(admission: Any) -> Any:
        if admission.expected == 500 and not others:
            others.append(None)
            others.extend(export.import_file(journal, tmp_path / "early.jsonl"))
        return admit(admission)

    monkeypatch.setattr(journal.store, "admit", slowly)
    (late,) = export.import_file(journal, tmp_path / "late.jsonl")

    assert (others[1].added, late.added, late.events) == (200, 800, 1000)
    assert journal.info("t").head_hash == memory.info("t").head_hash


def test_what_an_import_added_counts_although_the_answer_was_lost(
    memory: Journal, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pen(memory.store, "t").write(event(), event())
    export.export_file(memory, ["t"], tmp_path / "t.jsonl")
    admit, lost = journal.store.admit, []

    def lossy(admission: Any) -> Any:
        answer = admit(admission)
        if not lost:
            lost.append(answer)
            raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(journal.store, "admit", lossy)

    assert [each.added for each in export.import_file(journal, tmp_path / "t.jsonl")] == [2]
    assert [each.added for each in export.import_file(journal, tmp_path / "t.jsonl")] == [0]


def test_all_files_are_checked_before_the_first_is_taken(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        Pen(memory.store, name).write(event())
        export.export_file(memory, [name], tmp_path / f"{name}.jsonl")
    whole = (tmp_path / "b.jsonl").read_bytes()
    (tmp_path / "b.jsonl").write_bytes(whole[:-1])

    with pytest.raises(Corrupt):
        list(export.import_files(journal, [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
    assert journal.threads() == []
    (tmp_path / "b.jsonl").write_bytes(whole)
    with pytest.raises(UsageError, match="2 files hold 2 threads"):
        list(export.import_files(journal, [tmp_path], name="c"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no exported file"):
        list(export.import_files(journal, [tmp_path / "empty"]))
    assert [each.added for each in export.import_files(journal, [tmp_path])] == [1, 1]


def test_two_imports_of_one_file_at_once_add_each_event_once(
    memory: Journal, journal: Journal, tmp_path: Path
) -> None:
    """Either may be the one that adds a batch; neither fails, and nothing is there twice."""
    pen = Pen(memory.store, "t")
    for _ in range(4):
        pen.write(*(event() for _ in range(400)))
    export.export_file(memory, ["t"], tmp_path / "t.jsonl.gz")
    found: list[Any] = []
    start = threading.Barrier(3)

    def work() -> None:
        start.wait(30)
        try:
            found.extend(export.import_file(journal, tmp_path / "t.jsonl.gz"))
        except Exception as error:  # noqa: BLE001 - looked at below
            found.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)

    assert [(type(each).__name__, each.events) for each in found] == [("Imported", 1600)] * 3, found
    assert sum(each.added for each in found) == 1600, "each says what it has added, not what was missing"
    events = read_all(journal, "t")
    assert [each.seq for each in events] == list(range(1, 1601))
    assert journal.info("t").head_hash == memory.info("t").head_hash
