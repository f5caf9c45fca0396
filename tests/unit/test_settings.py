"""Settings: typed, ranged, and never a reason not to start."""

from pathlib import Path

import pytest

from app.core.errors import FolderUnusable, SettingsInvalid
from app.core.settings import Settings, all_settings, describe
from app.core.settings_file import SettingsFile
from app.core.settings_meta import parse_size


def test_settings_saved_and_loaded_are_the_same(tmp_path: Path) -> None:
    settings = Settings().replace(
        {
            "server.port": "auto",
            "memory.ram_cap_bytes": "1.5GiB",
            "memory.gpu_caps_bytes.CUDA0": 5,
            "model.kv_type": "q8_0",
            "desktop.autostart": "on",
        }
    )
    file = SettingsFile(tmp_path / "settings.yaml")
    file.save(settings)
    assert file.load().settings == settings
    assert file.load().problems == ()


def test_settings_file_holds_only_what_differs(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.yaml")
    file.save(Settings().replace({"server.port": 9000}))
    assert file.path.read_text() == "server:\n  port: 9000\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.port", 70000),
        ("server.port", "x"),
        ("server.port", 1.5),
        ("server.port", True),
        ("model.mood", "loud"),
        ("model.idle_timeout_s", float("nan")),
        ("memory.ram_cap_bytes", -1),
        ("desktop.autostart", 3),
        ("server.listen", 5),
        ("memory.gpu_caps_bytes", 5),
        ("nothing.here", 1),
        ("server.port.CUDA0", 1),
    ],
)
def test_settings_wrong_value_is_refused_with_its_key(key: str, value: object) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        Settings().replace({key: value})
    assert key.split(".", maxsplit=1)[0] in caught.value.message


def test_settings_unknown_key_names_near_ones() -> None:
    with pytest.raises(SettingsInvalid, match=r"server\.port"):
        describe("server.prot")


def test_settings_bad_values_fall_back_and_are_reported_once_each(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.yaml")
    file.path.write_text(
        "server:\n  port: 99999\n  listen: 127.0.0.1\nmodle:\n  slots: 2\nmodel:\n  slots: 3\n"
    )
    loaded = file.load()
    assert loaded.settings.server.port == 8555
    assert loaded.settings.model.slots == 3
    assert len(loaded.problems) == 2
    assert "server.port" in loaded.problems[0]
    assert "modle.slots" in loaded.problems[1]


@pytest.mark.parametrize("text", ["{", "a: [1", "\x00", "- a\n- b\n", "just words", "server: 5"])
def test_settings_damaged_file_gives_defaults_and_says_so(tmp_path: Path, text: str) -> None:
    file = SettingsFile(tmp_path / "settings.yaml")
    file.path.write_text(text)
    loaded = file.load()
    assert loaded.settings == Settings()
    assert loaded.problems


def test_settings_damaged_file_is_kept_aside_before_it_is_written_anew(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.yaml")
    file.path.write_text("server: {port: 1")
    loaded = file.load()
    assert file.path.read_text() == "server: {port: 1"
    file.save(loaded.settings.replace({"server.port": 9000}))
    assert file.load().problems == ()
    assert file.path.stat().st_mode & 0o777 == 0o600
    kept = list(tmp_path.glob("settings.damaged-*.yaml"))
    assert [path.read_text() for path in kept] == ["server: {port: 1"]


def test_settings_not_text_gives_defaults(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.yaml")
    file.path.write_bytes(b"\xff\xfe\x00\x80")
    assert file.load().settings == Settings()


def test_settings_unwritable_folder_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FolderUnusable, match="file"):
        SettingsFile(blocked / "settings.yaml").save(Settings())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512", 512),
        ("1k", 1024),
        ("1.5GiB", 1610612736),
        ("24G", 24 * 1024**3),
        (" 3 MB", 3 * 1024**2),
    ],
)
def test_parse_size_takes_binary_units(text: str, count: int) -> None:
    assert parse_size(text) == count


def test_settings_every_default_is_inside_its_own_range() -> None:
    for known in all_settings():
        if not known.per_device:
            assert known.check(known.default) == known.default
        assert known.meta.text.endswith(".")
