"""What `import refold` offers."""

from __future__ import annotations

import refold


def test_every_public_name_can_be_had_and_is_listed() -> None:
    for name in refold.__all__:
        assert getattr(refold, name) is not None, name
    assert set(dir(refold)) == set(refold.__all__)


def test_a_waiting_run_can_be_answered_from_python() -> None:
    @refold.program
    async def waits(run: refold.Run) -> object:
        return await run.wait_for("go")

    with refold.Journal.memory() as journal:
        assert refold.run_sync(waits, journal=journal, thread="t", wait=False).status == "waiting"
        refold.answers.signal(journal, "t", "go", refold.answers.from_json("[1]", "value"))

        assert refold.resume_sync(waits, journal=journal, thread="t").output == [1]
