from app.core.lifecycle import PressureLevel
from app.core.router.gate import (
    COOL_DOWN_S,
    PRESSURE_PATIENCE_S,
    VAIN_LOAD_PAUSE_S,
    Gate,
    fingerprint,
)


def test_gate_open_takes_everything() -> None:
    admission = Gate().admission()
    assert admission.takes_new
    assert admission.grants
    assert admission.loads


def test_gate_paused_answers_what_waits_and_takes_nothing_new() -> None:
    gate = Gate()
    gate.pause(True)
    admission = gate.admission()
    assert (admission.takes_new, admission.grants, admission.empties_queue) == (False, True, False)
    gate.pause(False)
    assert gate.admission().takes_new


def test_gate_paused_by_two_opens_when_both_have_left() -> None:
    gate = Gate()
    gate.pause(True, "It runs on battery.", "battery")
    assert gate.pause_sentence == "It runs on battery."
    gate.pause(True)
    assert "paused" in gate.admission().sentence
    gate.pause(False, by="battery")
    assert gate.is_paused
    gate.pause(False)
    assert not gate.is_paused
    assert gate.admission().takes_new


def test_gate_pressure_starts_nothing_and_says_why() -> None:
    gate = Gate()
    for level in list(PressureLevel)[1:]:
        gate.press(level, "100 MiB are left.")
        admission = gate.admission()
        assert not admission.takes_new
        assert not admission.grants
        assert not admission.loads
        assert "100 MiB are left." in admission.sentence
        assert 1 <= admission.retry_after_s <= 60
        assert admission.patience_s == PRESSURE_PATIENCE_S
    gate.press(PressureLevel.NORMAL)
    assert gate.admission().takes_new


def test_gate_stopping_outdoes_the_rest_and_empties_the_queue() -> None:
    gate = Gate()
    gate.pause(True)
    gate.press(PressureLevel.ELEVATED)
    gate.stop(True)
    assert gate.admission().empties_queue
    assert gate.is_shut


def test_gate_blamed_request_is_known_for_its_cool_down_only() -> None:
    gate = Gate()
    mine, other = fingerprint("/x", b"{}"), fingerprint("/x", b"{ }")
    gate.blame(mine, "It took too much.", 100.0)
    assert gate.blamed(mine, 101.0) == (COOL_DOWN_S - 1, "It took too much.")
    assert gate.blamed(other, 101.0) is None
    assert gate.blamed(mine, 100.0 + COOL_DOWN_S) is None
    assert not gate.blames


def test_gate_model_is_closed_alone_until_it_is_opened() -> None:
    gate = Gate()
    gate.close_model("a", "It has 900 of 1000 MiB.", 5.0)
    admission = gate.admission()
    assert admission.takes_new
    assert list(admission.closed_models) == ["a"]
    closing = admission.closed_models["a"]
    assert "a takes no requests for now" in closing.sentence
    assert "900 of 1000 MiB" in closing.sentence
    assert (closing.since_s, 1 <= closing.retry_after_s <= 60) == (5.0, True)
    assert not gate.expire(1e9)
    gate.pause(True)
    assert list(gate.admission().closed_models) == ["a"]
    gate.pause(False)
    gate.open_models()
    assert not gate.admission().closed_models


def test_gate_model_that_is_paused_opens_by_itself_or_for_the_user() -> None:
    gate = Gate()
    gate.close_model("a", "Why.", 0.0, VAIN_LOAD_PAUSE_S)
    gate.close_model("b", "Why.", 0.0, VAIN_LOAD_PAUSE_S)
    gate.open_models()
    assert set(gate.admission().closed_models) == {"a", "b"}
    gate.open_paused("b")
    assert not gate.expire(VAIN_LOAD_PAUSE_S - 1)
    assert set(gate.admission().closed_models) == {"a"}
    assert gate.expire(VAIN_LOAD_PAUSE_S)
    assert not gate.admission().closed_models
