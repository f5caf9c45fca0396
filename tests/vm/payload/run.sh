#!/usr/bin/env bash
# Runs in the machine, as an ordinary user, without a network.
set -u
export PIP_DISABLE_PIP_VERSION_CHECK=1
id
cat /proc/swaps
SECONDS=0
python3 -m venv --without-pip venv
# Compiled as far as it is imported: all of it would take minutes here.
# Debian keeps pip's wheel beside ensurepip; it runs from there, which saves installing it.
pip=$(ls /usr/share/python-wheels/pip-*.whl)
PYTHONPATH=$pip venv/bin/python -m pip install --quiet --no-index --no-deps --no-compile wheels/*.whl || exit 1
echo "installed from $(ls wheels | wc -l) wheels in $SECONDS s"
failed=0
for part in $(cat parts); do
  echo "--- $part"
  SECONDS=0
  PYTHONPATH=/payload timeout 1200 venv/bin/python -m "tests.vm.payload.$part" || failed=$((failed + 1))
  echo "--- $part took $SECONDS s"
done
exit "$failed"
