#!/usr/bin/env bash
# prove.sh [PART...]: Coolhead from wheels on the machine of build.sh; parts are headless and guard, all by default.
# PYTHON names an interpreter of Python 3.11 with pip. COOLHEAD_VM_WHEELS keeps the wheels between runs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3.11}
model=${COOLHEAD_TEST_MODELS:-$HOME/.cache/coolhead-tests}/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$model" ] || { echo "$model is missing; any run of the tests fetches it" >&2; exit 1; }
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT

wheels=${COOLHEAD_VM_WHEELS:-$payload/wheels}
mkdir -p "$wheels" "$payload/wheels"
rm -f "$wheels"/coolhead-*.whl
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$repository"
# Everything that a headless app needs: all but Qt, and what is marked for other systems.
"$python" - "$repository/pyproject.toml" >"$payload/requirements.txt" <<'PY'
import sys, tomllib
from pathlib import Path
project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
for requirement in project["dependencies"]:
    name, _, marker = requirement.partition(";")
    if not name.startswith("PySide6") and "darwin" not in marker:
        print(name.strip())
PY
if [ "$(find "$wheels" -name '*.whl' | wc -l)" -lt 2 ]; then
  "$python" -m pip download --quiet --only-binary :all: --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_34_x86_64 --python-version 3.11 --dest "$wheels" -r "$payload/requirements.txt"
fi
[ "$wheels" = "$payload/wheels" ] || cp "$wheels"/*.whl "$payload/wheels/"

mkdir -p "$payload/tests/fakes" "$payload/tests/vm/payload" "$payload/models"
cp "$repository"/tests/fakes/{guard_bench,hog}.py "$payload/tests/fakes/"
cp "$here"/payload/*.py "$payload/tests/vm/payload/"
cp "$here/payload/run.sh" "$payload/"
cp "$model" "$payload/models/"
echo 256 >"$payload/swap_mib"
echo "${@:-headless guard}" >"$payload/parts"
"$here/run.sh" "$payload" "${COOLHEAD_VM_MIB:-4096}" "${COOLHEAD_VM_SECONDS:-1800}"
