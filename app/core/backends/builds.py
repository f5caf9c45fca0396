"""Builds of engines for this or that kind of GPU: which there are, where they lie, how one is fetched.

All builds of xllamacpp share one import name, so each lies in a folder of its own under the data
folder, and a worker is started with that folder first on its path. Used by `coolhead engine` and by
the backends, which look what is there. Blocking.
"""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import EngineMissing
from app.core.hardware.machine import Machine

XLLAMACPP_VERSION = "2026.10.11549"
"""The one that this Coolhead was tried with; taken where none is installed beside us."""

MANIFEST = "coolhead-build.json"
INSTALL_S = 3600


@dataclass(frozen=True, slots=True)
class Build:
    """One build that can be fetched.

    Attributes:
        kind: what the user asks for: cuda, rocm, vulkan, cpu, llama-cpp-python, mlx.
        engine: whose build it is.
        requirement: what pip is asked for, pinned.
        index_url: where it comes from; empty for pip's own configuration.
        needs_index: pip's own configuration has it not: the builds for GPUs lie elsewhere.
        least_driver: major version of the NVIDIA driver that it needs; 0 for none.
        note: what the user should know.
    """

    kind: str
    engine: str
    requirement: tuple[str, ...]
    index_url: str = ""
    least_driver: int = 0
    note: str = ""
    needs_index: bool = False


@dataclass(frozen=True, slots=True)
class InstalledBuild:
    kind: str
    engine: str
    version: str
    folder: Path


KINDS = ("cuda", "rocm", "vulkan", "cpu", "llama-cpp-python", "mlx")
CUDA_13_DRIVER = 580
CUDA_12_DRIVER = 525


def build_for(
    kind: str,
    machine: Machine,
    environ_cmake_args: str = "",
    indexes: Mapping[str, str] | None = None,
) -> Build:
    """The build of a kind that suits this machine.

    Args:
        kind: one of `KINDS`.
        machine: whose driver decides between CUDA 12 and 13.
        environ_cmake_args: the user's CMAKE_ARGS, for the note.
        indexes: where builds for GPUs are, by name ("cu132", "vulkan"); those that xllamacpp's own
            documentation names where it is not given.

    Raises:
        EngineMissing: when the driver is too old for any, or the kind is not known.
    """
    pin = (f"xllamacpp=={_own_version() or XLLAMACPP_VERSION}",)
    if kind in {"cuda", "rocm", "vulkan"}:
        known = documented_indexes() if indexes is None else indexes
        if kind == "cuda":
            return _cuda_build(pin, nvidia_driver(machine), known)
        names = sorted((name for name in known if name.startswith(kind)), key=_version_key)
        url = known[names[-1]] if names else ""
        needs = "a Vulkan driver" if kind == "vulkan" else f"ROCm {names[-1][5:] if names else ''}"
        return Build(kind, "xllamacpp", pin, url, note=f"Needs {needs.strip()}.", needs_index=True)
    if kind == "cpu":
        return Build(kind, "xllamacpp", pin)
    if kind == "llama-cpp-python":
        args = f" with CMAKE_ARGS={environ_cmake_args}" if environ_cmake_args else ""
        return Build(
            kind,
            "llama-cpp-python",
            ("llama-cpp-python[server]>=0.3.16",),
            note=f"Is compiled here{args}: needs a C++ compiler and some ten minutes.",
        )
    if kind == "mlx":
        mlx = "mlx" if machine.system == "darwin" else "mlx[cpu]"
        return Build(kind, "mlx", (mlx, "mlx-lm>=0.32"))
    raise EngineMissing(f"There is no build called {kind!r}; it is one of {', '.join(KINDS)}.")


def _cuda_build(pin: tuple[str, ...], driver: int, known: Mapping[str, str]) -> Build:
    if driver and driver < CUDA_12_DRIVER:
        raise EngineMissing(
            f"The NVIDIA driver is version {driver}; the CUDA build needs {CUDA_12_DRIVER} or "
            "newer. Update the driver, or take `vulkan`.",
            driver=driver,
        )
    note = "" if driver else "No NVIDIA driver was found here; this build will not find a GPU."
    major, least = (13, CUDA_13_DRIVER) if driver >= CUDA_13_DRIVER else (12, CUDA_12_DRIVER)
    names = sorted((name for name in known if name.startswith(f"cu{major}")), key=_version_key)
    url = known[names[-1]] if names else ""
    return Build("cuda", "xllamacpp", pin, url, least, note, needs_index=True)


def documented_indexes() -> dict[str, str]:
    """Where xllamacpp's own documentation says that its builds for GPUs are, by their names.

    Read from the description that the installed package carries; empty where there is none.
    """
    try:
        text = importlib.metadata.distribution("xllamacpp").read_text("METADATA") or ""
    except importlib.metadata.PackageNotFoundError:
        return {}
    urls = re.findall(r"--index-url\s+(https://\S+?)/?(?=[\s`]|$)", text)
    return {url.rpartition("/")[2]: url for url in urls}


def _version_key(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


def check_driver(source: str, machine: Machine) -> None:
    """An index that the user names may be for a newer CUDA than the driver runs.

    Raises:
        EngineMissing: when its name says so.
    """
    match = re.search(r"/cu(\d{2})\d*/?$", source)
    driver = nvidia_driver(machine)
    least = {"12": CUDA_12_DRIVER, "13": CUDA_13_DRIVER}.get(match[1] if match else "", 0)
    if driver and driver < least:
        raise EngineMissing(
            f"{source} has builds for CUDA {match[1] if match else ''}, which needs an NVIDIA driver "
            f"{least} or newer; this one is {driver}. Take a build for CUDA 12, or update the driver.",
            driver=driver,
        )


def nvidia_driver(machine: Machine) -> int:
    """Major version of the NVIDIA driver; 0 where there is none."""
    for gpu in machine.gpus:
        match = re.match(r"(\d+)\.", gpu.driver) if gpu.kind == "cuda" else None
        if match:
            return int(match[1])
    return 0


def command(build: Build, target: Path, source: str = "") -> list[str]:
    """What is run to fetch a build into `target`.

    Args:
        build: which.
        target: an empty or absent folder.
        source: an index URL or a folder of wheels to take it from instead.

    Raises:
        EngineMissing: when there is neither pip nor uv, or no index is known.
    """
    args = ["install", "--target", str(target)]
    if source and Path(source).is_dir():
        args += ["--no-index", "--find-links", source]
    elif source or build.index_url:
        args += ["--index-url", source or build.index_url]
    elif build.needs_index:
        raise EngineMissing(
            f"Where the {build.kind} build of xllamacpp is, is not known here. Give the index that "
            "xllamacpp's documentation names for it: --index URL, or the setting engine.index."
        )
    is_frozen = getattr(sys, "frozen", False)
    if not is_frozen and importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", *args, *build.requirement]
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise EngineMissing("There is neither pip nor uv here to fetch a build with.")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [uv, "pip", *args, "--python-version", version, *build.requirement]


def install(
    build: Build,
    engines: Path,
    source: str = "",
    run: Callable[[Sequence[str]], int] | None = None,
) -> InstalledBuild:
    """Fetches a build into its own folder; the one before is replaced only when all went well.

    Args:
        build: which.
        engines: the folder that holds all builds.
        source: see `command`.
        run: runs a command line with our terminal, for tests; its exit status.

    Raises:
        EngineMissing: when it could not be fetched; nothing is left of the attempt.
    """
    folder = engines / build.kind
    scratch = engines / f".{build.kind}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        status = (run or _run)(command(build, scratch, source))
        if status != 0:
            raise EngineMissing(f"pip ended with status {status}; nothing was installed.")
        version = _version_in(scratch, build.engine)
        manifest = {"kind": build.kind, "engine": build.engine, "version": version}
        (scratch / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return InstalledBuild(build.kind, build.engine, version, folder)


def remove(kind: str, engines: Path) -> bool:
    """Whether there was one."""
    folder = engines / kind
    if kind not in KINDS or not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True


def installed(engines: Path) -> tuple[InstalledBuild, ...]:
    """The complete builds in a folder, in the order of `KINDS`."""
    found = []
    for kind in KINDS:
        try:
            data = json.loads((engines / kind / MANIFEST).read_text(encoding="utf-8"))
            found.append(
                InstalledBuild(kind, str(data["engine"]), str(data["version"]), engines / kind)
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return tuple(found)


def _run(argv: Sequence[str]) -> int:
    return subprocess.run(list(argv), check=False, timeout=INSTALL_S).returncode


def _version_in(folder: Path, engine: str) -> str:
    name = {"mlx": "mlx-lm"}.get(engine, engine)
    for found in importlib.metadata.distributions(name=name, path=[str(folder)]):
        return found.version
    raise EngineMissing(f"What was fetched has no {name} in it; nothing was installed.")


def _own_version() -> str:
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return ""
