"""AMD and Intel GPUs out of sysfs trees made here."""

from pathlib import Path

from app.core.hardware.drm import drm_use, read_drm

GIB = 1 << 30
RAM = 32 * GIB


def card(root: Path, number: int, pci: str, files: dict[str, str], outlets: dict[str, str]) -> None:
    folder = root / "class" / "drm" / f"card{number}"
    device = folder / "device"
    device.mkdir(parents=True)
    (device / "uevent").write_text(f"DRIVER=amdgpu\nPCI_SLOT_NAME={pci}\n")
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    for outlet, status in outlets.items():
        target = folder / f"card{number}-{outlet}" / "status"
        target.parent.mkdir(parents=True)
        target.write_text(status + "\n")


def amd(total: int, used: int, **more: str) -> dict[str, str]:
    return {
        "device/vendor": "0x1002",
        "device/mem_info_vram_total": str(total),
        "device/mem_info_vram_used": str(used),
        **{f"device/{name}": text for name, text in more.items()},
    }


def test_drm_amd_card_with_a_screen_is_read(tmp_path: Path) -> None:
    files = amd(16 * GIB, GIB, mem_info_vram_vendor="samsung", product_name="RX 7800 XT")
    card(tmp_path, 1, "0000:03:00.0", files, {"DP-1": "connected", "HDMI-A-1": "disconnected"})
    (gpu,) = read_drm(RAM, 20 * GIB, tmp_path)
    assert (gpu.name, gpu.device, gpu.pci) == ("RX 7800 XT", "Vulkan0", "0000:03:00.0")
    assert (gpu.total_bytes, gpu.free_bytes) == (16 * GIB, 15 * GIB)
    assert gpu.has_display
    assert not gpu.is_integrated


def test_drm_amd_integrated_gpu_counts_the_ram_it_may_use(tmp_path: Path) -> None:
    files = amd(GIB, GIB // 2, mem_info_gtt_total=str(15 * GIB), mem_info_gtt_used="0")
    card(tmp_path, 0, "0000:c1:00.0", files, {})
    (gpu,) = read_drm(RAM, 10 * GIB, tmp_path)
    assert gpu.is_integrated
    assert gpu.total_bytes == 16 * GIB
    assert gpu.free_bytes == 10 * GIB + GIB // 2
    assert not gpu.has_display


def test_drm_cards_come_in_bus_order(tmp_path: Path) -> None:
    card(tmp_path, 1, "0000:03:00.0", amd(8 * GIB, 0, mem_info_vram_vendor="micron"), {})
    card(tmp_path, 0, "0000:c1:00.0", amd(GIB, 0, mem_info_gtt_total="0"), {})
    assert [gpu.pci for gpu in read_drm(RAM, RAM, tmp_path)] == ["0000:03:00.0", "0000:c1:00.0"]


def test_drm_intel_integrated_gpu_shares_the_ram(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:00:02.0", {"device/vendor": "0x8086"}, {"eDP-1": "connected"})
    (gpu,) = read_drm(RAM, 10 * GIB, tmp_path)
    assert gpu.is_integrated
    assert (gpu.total_bytes, gpu.free_bytes) == (16 * GIB, 10 * GIB)


def test_drm_intel_card_has_memory_of_its_own(tmp_path: Path) -> None:
    files = {"device/vendor": "0x8086", "lmem_total_bytes": str(16 * GIB)}
    card(tmp_path, 0, "0000:03:00.0", files, {})
    (gpu,) = read_drm(RAM, RAM, tmp_path)
    assert not gpu.is_integrated
    assert gpu.total_bytes == 16 * GIB


def test_drm_virtual_card_is_no_gpu(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:00:01.0", {"device/vendor": "0x1af4"}, {})
    assert read_drm(RAM, RAM, tmp_path) == ()


def test_drm_no_sysfs_is_no_gpu(tmp_path: Path) -> None:
    assert read_drm(RAM, RAM, tmp_path) == ()


def test_drm_use_counts_each_client_once(tmp_path: Path) -> None:
    infos = tmp_path / "77" / "fdinfo"
    infos.mkdir(parents=True)
    row = (
        "pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t9\n"
        "drm-resident-vram0:\t2048 MiB\ndrm-resident-gtt:\t1024 KiB\n"
    )
    (infos / "5").write_text(row)
    (infos / "6").write_text(row)
    (infos / "7").write_text("pos:\t0\nflags:\t02\n")
    (infos / "8").write_text(row.replace("client-id:\t9", "client-id:\t10"))
    expected = 2 * (2048 * 1024 * 1024 + 1024 * 1024)
    assert drm_use([77, 78], tmp_path) == {"0000:03:00.0": expected}
