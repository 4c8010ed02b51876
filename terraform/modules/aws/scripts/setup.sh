#!/usr/bin/env bash
# What a machine needs once, at its first boot: the local drives' service, limits, the package, and a profile that says
# where the data are. Asked again, it does the same again.
set -euo pipefail

root=${ROOT:-} # in front of every path that is written; tests set it
settings=${CONCURRENT_LOADER_SETTINGS:-/etc/concurrent-loader/settings}
# shellcheck source=/dev/null
source "$settings"
: "${BUCKET:?}" "${CACHE_DIR:?}" "${DATASET_URL:?}" "${PACKAGE:?}" "${REGION:?}" "${TRAINING_USER:?}"

venv=$root/opt/concurrent-loader

say() { echo "concurrent-loader-setup: $*" >&2; }

# Deep Learning images make a volume group of the local drives by themselves, world-readable and without nodev.
release_drives() {
  systemctl mask --now dlami-nvme.service 2>/dev/null || true # other images have no such service
  if mountpoint --quiet /opt/dlami/nvme; then
    umount /opt/dlami/nvme
  fi
  if command -v vgs >/dev/null && vgs vg.01 >/dev/null 2>&1; then
    vgremove --force --yes vg.01
  fi
}

install_tools() {
  local missing=()
  command -v mdadm >/dev/null || missing+=(mdadm)
  command -v mkfs.xfs >/dev/null || missing+=(xfsprogs)
  if ((${#missing[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends "${missing[@]}"
  fi
}

mount_drives() {
  systemctl daemon-reload
  # A machine whose drives are taken can still train, from the bucket alone: what failed is in the journal.
  systemctl enable --now concurrent-loader-nvme.service || say "the local drives are not mounted, see the journal"
}

tune() {
  mkdir --parents "$root/etc/sysctl.d" "$root/etc/security/limits.d"
  cat >"$root/etc/sysctl.d/60-concurrent-loader.conf" <<'SYSCTL'
# Many connections at once to a store some milliseconds away: windows that hold 90 MB/s each, and are not shut when idle.
net.core.rmem_max = 16777216
net.ipv4.tcp_rmem = 4096 262144 16777216
net.ipv4.tcp_slow_start_after_idle = 0
net.ipv4.ip_local_port_range = 10240 65000
SYSCTL
  cat >"$root/etc/security/limits.d/60-concurrent-loader.conf" <<LIMITS
$TRAINING_USER soft nofile 65536
$TRAINING_USER hard nofile 1048576
LIMITS
  sysctl --quiet --load "$root/etc/sysctl.d/60-concurrent-loader.conf"
}

install_package() {
  local python
  for python in python3.14 python3.13 python3.12 python3.11 python3; do
    "$python" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && break
  done
  "$python" -m venv "$venv"
  if [[ -n ${WHEELS_PREFIX:-} ]]; then
    local wheels
    wheels=$(mktemp --directory)
    aws s3 cp --recursive --only-show-errors --region "$REGION" "s3://$BUCKET/$WHEELS_PREFIX/" "$wheels"
    "$venv/bin/pip" install --quiet --no-index --find-links "$wheels" "$PACKAGE"
    rm --recursive --force "$wheels"
  else
    "$venv/bin/pip" install --quiet "$PACKAGE"
  fi
}

# For shells of any user: where the data are, and the commands. There is nothing secret in it; keys come from the role.
write_profile() {
  mkdir --parents "$root/etc/profile.d"
  cat >"$root/etc/profile.d/concurrent-loader.sh" <<PROFILE
export AWS_REGION='$REGION'
export CONCURRENT_LOADER_URL='$DATASET_URL'
export CONCURRENT_LOADER_CACHE_DIR='$CACHE_DIR'
export PATH="/opt/concurrent-loader/bin:\$PATH"
PROFILE
  chmod 0644 "$root/etc/profile.d/concurrent-loader.sh"
}

main() {
  write_profile
  release_drives
  install_tools
  mount_drives
  tune
  install_package
  # Its verdict goes to the log of the first boot; a machine with a weakness is still a machine.
  runuser --user "$TRAINING_USER" -- "$venv/bin/concurrent-loader" doctor \
    --terraform "$root/etc/concurrent-loader/outputs.json" || say "doctor found something, see above"
}

main
