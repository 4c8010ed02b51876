#!/usr/bin/env bash
# One xfs over all instance-store drives, striped, mounted for the training user alone. Runs at every boot: the drives are
# empty after a stop and hold the last cache after a reboot. EBS volumes, and drives that anything else uses, are not
# touched.
set -euo pipefail

settings=${CONCURRENT_LOADER_SETTINGS:-/etc/concurrent-loader/settings}
# shellcheck source=/dev/null
source "$settings"
: "${MOUNT_POINT:?is not set in $settings}" "${TRAINING_USER:?is not set in $settings}" "${CACHE_DIR:?is not set in $settings}"

model=${NVME_MODEL:-Amazon EC2 NVMe Instance Storage}
array=${ARRAY:-/dev/md/concurrent-loader}
label=cl-cache # of the file system; xfs takes twelve letters

say() { echo "concurrent-loader-nvme: $*" >&2; }

# The drives to use, one a line: those that DRIVES names, or all of the instance store's.
find_drives() {
  if [[ -n ${DRIVES:-} ]]; then
    tr ' ' '\n' <<<"$DRIVES"
    return
  fi
  local block
  for block in /sys/class/block/nvme*n*; do
    # Partitions have no model of their own.
    [[ -r $block/device/model && "$(sed 's/ *$//' "$block/device/model")" == "$model" ]] || continue
    echo "/dev/${block##*/}"
  done
}

# Whether something else has the drive: a mount, swap, another array, a volume group.
is_used() {
  [[ -n "$(lsblk --noheadings --list --output MOUNTPOINT "$1" | tr -d '[:space:]')" ]] && return 0
  local holder
  for holder in "/sys/class/block/$(basename "$1")/holders/"*; do
    [[ -e $holder ]] && return 0
  done
  return 1
}

has_cache() { [[ "$(blkid --probe --output value --match-tag LABEL "$1" 2>/dev/null)" == "$label" ]]; }

# Puts the drives together: the array of the last boot if it is whole, a new one otherwise. Prints its device.
stripe() {
  if mdadm --assemble --run "$array" "$@" >&2; then
    has_cache "$array" && { echo "$array"; return; }
    mdadm --stop "$array" >&2
  fi
  say "making an array of $# drives"
  mdadm --zero-superblock --force "$@" >&2 2>/dev/null || true # nothing there is no error
  mdadm --create "$array" --run --force --level=0 --chunk=512 --metadata=1.2 --homehost=any \
    --name=concurrent-loader --raid-devices="$#" "$@" >&2
  echo "$array"
}

mount_cache() { mount -t xfs -o noatime,nodev,nosuid "$1" "$MOUNT_POINT"; }

main() {
  if ! mountpoint --quiet "$MOUNT_POINT"; then
    local found drives=() drive device
    found=$(find_drives | sort --version-sort)
    while read -r drive; do
      [[ -n $drive ]] || continue
      if is_used "$drive"; then
        say "$drive is in use by something else, left alone"
      else
        drives+=("$drive")
      fi
    done <<<"$found"
    case ${#drives[@]} in
      0)
        say "no free instance-store drive on this machine; $MOUNT_POINT is not mounted"
        return 1
        ;;
      1) device=${drives[0]} ;;
      *) device=$(stripe "${drives[@]}") ;;
    esac
    mkdir --parents "$MOUNT_POINT"
    if has_cache "$device" && mount_cache "$device"; then
      say "mounted $device with the cache of the last boot"
    else
      mkfs.xfs -q -f -L "$label" "$device"
      mount_cache "$device"
      say "made a file system on $device (${#drives[@]} drives) and mounted it"
    fi
  fi
  chown "$TRAINING_USER:" "$MOUNT_POINT"
  chmod 0700 "$MOUNT_POINT"
  # The parent is the user's own by now: what is made there is made as that user, whatever links lie in the way.
  runuser --user "$TRAINING_USER" -- mkdir --parents --mode=0700 "$CACHE_DIR"
}

main
