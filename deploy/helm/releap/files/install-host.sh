#!/bin/sh
# Makes the node of this pod a host of Releap, and updates it: the package, settings, the join, the unit. All of that belongs to the node; the
# pod owns no sandbox, and its end changes nothing. Every step can be repeated. For sh, nsenter, wget and sha256sum of BusyBox.
#
#   install-host.sh          does that, and waits until the pod ends
#   install-host.sh ready    exits with 0 while it is done and the unit runs
#
# PACKAGE_SHA256, and PACKAGE_URL or PACKAGE_FILE   the Debian package
# UNIT                                              its unit
# NODE_NAME, DATA_HOST                              of the host
# SETTINGS_FILE, TOKEN_FILE                         lines VARIABLE=value; the join token, which may be absent once the host has joined
set -eu

SCRATCH=${SCRATCH:-/scratch}
# On the node.
STATE=/var/lib/releap-installer
HOME_FOLDER=/var/lib/releap
SETTINGS=/etc/releap/kubernetes.env
DROP_IN=/etc/systemd/system/$UNIT.d/kubernetes.conf

say() { echo "install-host: $*"; }
fail() {
  echo "install-host: $*" >&2
  exit 1
}
on_node() { nsenter -t 1 -m -u -i -n -- "$@"; }
# Writes stdin to a file of the node, in one step. Tells whether the file has changed.
write_on_node() {
  on_node sh -c '
    set -eu
    umask 077
    mkdir -p "$(dirname "$1")"
    cat >"$1.partial"
    if cmp -s "$1.partial" "$1"; then
      rm "$1.partial"
      echo same
    else
      mv "$1.partial" "$1"
      echo changed
    fi' sh "$1"
}
sum_of_settings() { on_node sh -c 'sha256sum "$1" 2>/dev/null || true' sh "$HOME_FOLDER/runner.env"; }

check_node() {
  for program in apt-get dpkg-query systemctl systemd-run; do
    on_node sh -c 'command -v "$1" >/dev/null' sh "$program" ||
      fail "the node $NODE_NAME has no $program: hosts need Debian or Ubuntu with systemd"
  done
}

# A unit that ends all processes of its control group would end sandboxes with a restart.
check_kill_mode() {
  [ "$(on_node systemctl show --property=LoadState --value "$UNIT")" = loaded ] || return 0
  mode=$(on_node systemctl show --property=KillMode --value "$UNIT")
  [ "$mode" = process ] ||
    fail "$UNIT of $NODE_NAME has KillMode=$mode, which ends sandboxes with it: it must be process. Nothing was changed"
}

is_installed() {
  [ "$(on_node sh -c 'cat "$1" 2>/dev/null || true' sh "$STATE/package.sha256")" = "$PACKAGE_SHA256" ] &&
    [ "$(on_node dpkg-query --show --showformat='${db:Status-Status}' releap 2>/dev/null || true)" = installed ]
}

install_package() {
  if is_installed; then
    say "the package $PACKAGE_SHA256 is installed already"
    return 0
  fi
  file=${PACKAGE_FILE:-}
  if [ -z "$file" ]; then
    file=$SCRATCH/releap.deb
    say "downloading $PACKAGE_URL"
    wget -q -O "$file" "$PACKAGE_URL" || fail "cannot download $PACKAGE_URL"
  fi
  [ -f "$file" ] || fail "the image of the package has no $file"
  found=$(sha256sum "$file" | cut -d' ' -f1)
  [ "$found" = "$PACKAGE_SHA256" ] || fail "the package has the SHA-256 $found, and not $PACKAGE_SHA256: it is not installed"
  on_node sh -c 'mkdir -p "$1" && cat >"$1/releap.deb"' sh "$STATE" <"$file"
  say "installing the package $PACKAGE_SHA256"
  # By systemd of the node: the end of the pod does not interrupt it. The package stops and starts its units; sandboxes continue.
  on_node systemd-run --quiet --wait --pipe --collect --unit=releap-install -- sh -c '
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    dpkg --configure -a
    install() {
      apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold --allow-downgrades install "$1/releap.deb"
    }
    # With old lists of packages a dependency may not be found.
    install "$1" || { apt-get -q update && install "$1"; }
    rm "$1/releap.deb"' sh "$STATE" || fail 'the package could not be installed, see above'
  echo "$PACKAGE_SHA256" | write_on_node "$STATE/package.sha256" >/dev/null
}

join() {
  before=$(sum_of_settings)
  if [ -s "${TOKEN_FILE:-}" ]; then
    # Again on a host that has joined it changes name and address alone.
    set -- releap join "$(cat "$TOKEN_FILE")" --name "$NODE_NAME" --data-host "$DATA_HOST"
    on_node "$@" || fail 'the host has not joined, see above'
  elif ! on_node test -s "$HOME_FOLDER/runner/credential"; then
    fail "$NODE_NAME has not joined yet, and there is no join token: make the Secret (rlp host join-token)"
  fi
  [ "$(sum_of_settings)" = "$before" ] || changed=yes
}

start_unit() {
  [ "$(write_on_node "$SETTINGS" <"$SETTINGS_FILE")" = same ] || changed=yes
  [ "$(printf '[Service]\nEnvironmentFile=%s\n' "$SETTINGS" | write_on_node "$DROP_IN")" = same ] || changed=yes
  on_node systemctl daemon-reload
  check_kill_mode
  on_node systemctl enable --quiet "$UNIT"
  if [ "$changed" = yes ]; then
    on_node systemctl restart "$UNIT"
  else
    on_node systemctl start "$UNIT"
  fi
}

if [ "${1:-}" = ready ]; then
  [ -e "$SCRATCH/installed" ] && on_node systemctl is-active --quiet "$UNIT"
  exit
fi
rm -f "$SCRATCH/installed"
changed=no
check_node
check_kill_mode
install_package
join
start_unit
touch "$SCRATCH/installed"
say "$NODE_NAME is a host: $(on_node dpkg-query --show releap)"
[ "${1:-}" = once ] && exit
trap 'exit 0' TERM INT
while :; do
  sleep 86400 &
  wait $!
done
