"""What follows a bad end: pauses, smaller restarts, and the stop after the third kill."""

from app.core.backends.recovery import COOL_DOWN_S, KILL_WINDOW_S, Recovery, smaller
from app.core.lifecycle import ExitCause
from app.core.models.load_settings import LoadSettings

CAP = ExitCause.CAP_EXCEEDED


def test_recovery_first_kill_cools_down_then_allows_one_step_smaller() -> None:
    recovery = Recovery()
    recovery.note_end(CAP, "Too much.", 100.0)
    pause = recovery.pause(101.0)
    assert pause is not None
    assert "Too much." in pause.sentence
    assert pause.retry_after_s == COOL_DOWN_S - 1
    assert recovery.pause(100.0 + COOL_DOWN_S) is None
    assert recovery.steps == 1


def test_recovery_third_kill_in_ten_minutes_waits_for_the_user() -> None:
    recovery = Recovery()
    for at in (0.0, 100.0, 200.0):
        recovery.note_end(CAP, "Too much.", at)
    pause = recovery.pause(500.0)
    assert pause is not None
    assert pause.needs_user
    recovery.forgive()
    assert recovery.pause(500.0) is None
    assert recovery.steps == 0


def test_recovery_kills_far_apart_never_stop_it() -> None:
    recovery = Recovery()
    for at in range(5):
        recovery.note_end(CAP, "Too much.", at * (KILL_WINDOW_S + 1))
        assert recovery.pause(at * (KILL_WINDOW_S + 1) + COOL_DOWN_S) is None


def test_recovery_wanted_ends_and_lost_guards_count_for_nothing() -> None:
    recovery = Recovery()
    for cause in (ExitCause.UNLOADED, ExitCause.STOPPED_BY_USER, ExitCause.GUARD_LOST):
        recovery.note_end(cause, "", 0.0)
    assert recovery == Recovery()


def test_recovery_crashes_in_a_row_pause_and_a_good_answer_ends_the_row() -> None:
    recovery = Recovery()
    for at in (0.0, 1.0, 2.0):
        assert recovery.pause(at) is None
        recovery.note_end(ExitCause.CRASHED, "SIGSEGV.", at)
    pause = recovery.pause(3.0)
    assert pause is not None
    assert not pause.needs_user
    assert recovery.steps == 0
    recovery.note_use()
    assert recovery.pause(3.0) is None


def test_smaller_each_step_takes_less_and_never_breaks_the_figures() -> None:
    load = LoadSettings(
        context_tokens=8192, slots=4, prompt_cache_bytes=1 << 28, checkpoints=4, gpu_layers=32
    )
    one, two = smaller(load, 1), smaller(load, 2)
    assert smaller(load, 0) == load
    assert (one.context_tokens, one.slots, one.kv_type_k) == (4096, 4, "f16")
    assert (one.prompt_cache_bytes, one.checkpoints, one.gpu_layers) == (0, 0, 24)
    assert (two.context_tokens, two.slots, two.kv_type_k, two.kv_type_v) == (
        2048,
        2,
        "q8_0",
        "q8_0",
    )
    assert two.gpu_layers == 18


def test_smaller_without_flash_attention_leaves_v_alone() -> None:
    two = smaller(LoadSettings(flash_attention=False), 2)
    assert (two.kv_type_k, two.kv_type_v) == ("q8_0", "f16")


def test_smaller_context_below_the_least_is_kept() -> None:
    assert smaller(LoadSettings(context_tokens=256), 3).context_tokens == 256
    assert smaller(LoadSettings(context_tokens=700), 3).context_tokens == 512
