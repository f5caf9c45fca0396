#!/usr/bin/env bash
# run.sh DIR [MEMORY_MIB] [SECONDS]: boots the machine of build.sh with DIR as /payload, runs DIR/run.sh in it as
# uid 1000, prints what that says, powers off. DIR/swap_mib, where there is one, is the size of the swap file.
# Exit status: the payload's; 124 when the time ran out.
set -euo pipefail
vm=${COOLHEAD_VM:-$HOME/.cache/coolhead-vm}
payload=$1 memory_mib=${2:-4096} limit_s=${3:-1800}
image=$(mktemp --suffix=.img)
console=$(mktemp)
trap 'rm -f "$image" "$console"' EXIT
mkfs.ext4 -q -L payload -d "$payload" "$image" "$(($(du -sm "$payload" | cut -f1) * 4 + 512))M"
code=0
timeout --foreground "$limit_s" qemu-system-x86_64 \
  -accel tcg,thread=multi -cpu max -machine q35 -m "$memory_mib" -smp 2 -nographic -no-reboot -nic none \
  -kernel "$vm/vmlinuz" -initrd "$vm/initrd" \
  -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 no_timer_check mitigations=off" \
  -drive "file=$vm/root.img,format=raw,if=virtio,snapshot=on" \
  -drive "file=$image,format=raw,if=virtio" \
  </dev/null 2>&1 | sed -u 's/\r//g' | tee "$console" | sed -un '/=== payload begins/,$p' || code=$?
[ "$code" -eq 0 ] || exit "$code"
exit "$(sed -n 's/^=== payload ends with //p' "$console" | tail -n 1)"
