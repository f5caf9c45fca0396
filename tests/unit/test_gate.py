from app.core.lifecycle import PressureLevel
from app.core.router.gate import COOL_DOWN_S, Gate, fingerprint


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
