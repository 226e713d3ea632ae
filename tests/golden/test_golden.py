"""Threads recorded by earlier builds: every later build reads, verifies, replays and imports them unchanged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from golden import corpus
from msgspec import structs
from refold.agent.conversation import conversation
from refold.journal import export
from refold.journal.journal import Journal
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.recorded_requests import Rebuilder
from refold.replay.runner import read_all
from refold.replay.verification import verify, verify_export

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.jsonl"))
NAMES = [file.stem for file in FILES]

DIGESTS = {
    "accepted": "c27f921fbea8d2a4",
    "acting": "d71741d15a7b4cc0",
    "clerk-forked": "6305cfe1ae5059a5",
    "clerk": "cc0e0d8dcb00f074",
    "doomed": "3193504674af4f57",
    "held": "45a52c4b24a1dae2",
    "errand": "b57a65506b530f03",
    "patient": "d9a862d8632eee1f",
    "superseded": "b01f3d1fbbb62f8c",
}
"""SHA-256 of each file: the corpus is added to and never changed."""


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_recorded_thread_is_read_verified_and_replayed(file: Path) -> None:
    (verdict,) = verify_export(file)
    assert verdict.sound, list(verdict.lines())
    assert verdict.passed_over == 0
    for filed in export.read_file(file):
        rebuild.replay(corpus.PROGRAMS[file.stem], file.stem, list(filed.events))


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_it_comes_through_an_import_as_it_was(file: Path) -> None:
    memory = Journal.memory()
    ((header, events),) = [(each.header, list(each.events)) for each in export.read_file(file)]
    export.import_file(memory, file)
    assert read_all(memory, file.stem) == [structs.replace(each, fence=0) for each in events]
    assert memory.info(file.stem).head_hash.hex() == header.head_hash
    assert all(each.sound for each in verify(memory))


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_bodies_are_encoded_today_as_they_were_and_requests_are_rebuilt(file: Path) -> None:
    made = corpus.PROGRAMS[file.stem]
    for filed in export.read_file(file):
        events = list(filed.events)
        bodies = [ev.decode_event(each) for each in events]
        assert [ev.encode_body(body) for body in bodies] == [each.body for each in events]
        start = 0
        for seq, body in enumerate(bodies, 1):
            start = seq if isinstance(body, ev.RunStarted) else start
            if isinstance(body, ev.ModelResponded):
                prior = made.prior(bodies[: start - 1])
                assert Rebuilder(bodies, start, prior, made.tell).at(seq).exact
        for end in range(len(events)):
            conversation(events[:end])


def test_every_kind_of_event_is_in_the_corpus() -> None:
    kinds = {event.kind for file in FILES for filed in export.read_file(file) for event in filed.events}
    assert kinds == set(ev.VERSIONS)


def test_no_file_of_the_corpus_was_changed() -> None:
    assert {file.stem: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in FILES} == DIGESTS
