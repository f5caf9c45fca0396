#!/usr/bin/env bash
# Makes the desktop-like machine: Debian 12 with cgroup v2, a systemd user manager, systemd-oomd.
# Needs root, qemu-system-x86_64 and debootstrap; leaves root.img, vmlinuz and initrd in $COOLHEAD_VM.
set -euo pipefail
vm=${COOLHEAD_VM:-$HOME/.cache/coolhead-vm}
packages=(
  systemd systemd-sysv systemd-oomd dbus dbus-user-session libpam-systemd procps util-linux iproute2
  python3 python3-venv libgomp1 ca-certificates e2fsprogs initramfs-tools linux-image-cloud-amd64
)
if [ -f "$vm/root.img" ]; then
  echo "$vm/root.img is there already"
  exit 0
fi
for program in qemu-system-x86_64 debootstrap mkfs.ext4; do
  command -v "$program" >/dev/null || { echo "$program is missing (Debian: qemu-system-x86, debootstrap, e2fsprogs)" >&2; exit 1; }
done

mkdir -p "$vm"
root=$(mktemp -d "$vm/root.XXXXXX")
chmod 755 "$root" # the disk's root folder gets its mode
trap 'rm -rf "$root" "$vm/root.img.new"' EXIT
debootstrap --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" bookworm "$root" >"$vm/debootstrap.log"

echo coolhead-vm >"$root/etc/hostname"
printf '/dev/vda / ext4 defaults,noatime 0 1\n/dev/vdb /payload ext4 defaults 0 0\n' >"$root/etc/fstab"
chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash user
# The user's manager runs without a login.
mkdir -p "$root/payload" "$root/var/lib/systemd/linger"
touch "$root/var/lib/systemd/linger/user"

cat >"$root/etc/systemd/system/payload.service" <<'UNIT'
[Unit]
Description=Runs the payload as an ordinary user with a user manager
RequiresMountsFor=/payload
Wants=user@1000.service
After=user@1000.service systemd-user-sessions.service
[Service]
Type=oneshot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStart=/usr/local/bin/run-payload
ExecStopPost=/usr/bin/systemctl --no-block poweroff
UNIT
cat >"$root/usr/local/bin/run-payload" <<'SCRIPT'
#!/bin/bash
if [ -s /payload/swap_mib ]; then
  fallocate -l "$(cat /payload/swap_mib)M" /swapfile && chmod 600 /swapfile && mkswap -q /swapfile && swapon /swapfile
fi
chown -R user /payload
echo "=== payload begins"
runuser -u user -- env HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 \
  DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus bash -lc 'cd /payload && bash ./run.sh'
echo "=== payload ends with $?"
SCRIPT
chmod +x "$root/usr/local/bin/run-payload"
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../payload.service "$root/etc/systemd/system/multi-user.target.wants/payload.service"
systemctl --root="$root" enable systemd-oomd >/dev/null 2>&1
systemctl --root="$root" mask getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer >/dev/null 2>&1

mkfs.ext4 -q -d "$root" "$vm/root.img.new" 3G
cp "$root"/boot/vmlinuz-*cloud* "$vm/vmlinuz"
cp "$root"/boot/initrd.img-*cloud* "$vm/initrd"
mv "$vm/root.img.new" "$vm/root.img"
echo "built $vm/root.img"
