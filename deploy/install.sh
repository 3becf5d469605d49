#!/bin/sh
# Installs Releap from its Debian package on Debian 12 or 13 or Ubuntu 24.04, x86-64.
#
#   sh install.sh                    from the place of releases (RELEAP_RELEASES)
#   sh install.sh --from DIR|URL     from a folder, or from below a URL, with SHA256SUMS and the package
#   sh install.sh --uninstall        removes the package; data and configuration stay
#
# Safe to repeat: the version that is installed already is left as it is. An installed older version is upgraded: its service is stopped
# meanwhile, and its sandboxes continue.
set -eu

# Where releases are published: a URL below which SHA256SUMS and the package lie.
RELEASES=${RELEAP_RELEASES:-}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

usage() {
  echo "usage: install.sh [--from DIR|URL] | --uninstall"
}

# Of the file that RELEAP_OS_RELEASE names for tests.
field() {
  sed -n "s/^$1=[\"']\{0,1\}\([^\"']*\).*/\1/p" "${RELEAP_OS_RELEASE:-/etc/os-release}"
}

check_machine() {
  system=$(uname -s)
  [ "$system" = Linux ] || fail "Releap runs on Linux; this is $system"
  machine=${RELEAP_MACHINE:-$(uname -m)}
  case $machine in
    x86_64) ;;
    *) fail "Releap runs on x86-64 (x86_64); this machine is $machine" ;;
  esac
  distribution=$(field ID) version=$(field VERSION_ID)
  case "$distribution $version" in
    'debian 12' | 'debian 13' | 'ubuntu 24.04') ;;
    *) fail "the package is for Debian 12 or 13 and Ubuntu 24.04; this is ${distribution:-unknown} ${version:-(no version)}" ;;
  esac
}

# fetch NAME: copies or downloads a file of the release into the present folder.
fetch() {
  case $from in
    http://* | https://*)
      if command -v curl >/dev/null; then
        curl --fail --silent --show-error --location --proto-redir =https --output "$1" "$from/$1" ||
          fail "cannot download $from/$1"
      elif command -v wget >/dev/null; then
        wget --quiet --output-document "$1" "$from/$1" || fail "cannot download $from/$1"
      else
        fail 'a download needs curl or wget: apt-get install curl'
      fi
      ;;
    *)
      [ -f "$from/$1" ] || fail "$from has no $1"
      cp "$from/$1" "$1"
      ;;
  esac
}

install_package() {
  check_machine
  [ -n "$from" ] || fail 'where is the release? Give --from DIR or URL, or set RELEAP_RELEASES'
  case $from in
    # The checksums come from there, too.
    https://* | http://127.0.0.1[:/]* | http://localhost[:/]*) from=${from%/} ;;
    http://*) fail "$from is not https://: what it sends could be anybody's" ;;
    *) from=$(CDPATH='' cd -P "$from" 2>/dev/null && pwd) || fail 'the folder of --from does not exist' ;;
  esac
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  trap 'exit 130' INT TERM
  # The downloader of apt is another user.
  chmod 755 "$scratch"
  cd "$scratch"
  fetch SHA256SUMS
  package=$(sed -n 's/^[0-9a-f]\{64\}  \(releap_[A-Za-z0-9.+~-]*_amd64\.deb\)$/\1/p' SHA256SUMS)
  [ "$(printf %s "$package" | grep -c .)" = 1 ] || fail "SHA256SUMS of $from names not exactly one releap_VERSION_amd64.deb"
  fetch "$package"
  grep -F "  $package" SHA256SUMS | sha256sum --check --quiet - >&2 || fail "$package is damaged: its checksum is another one"
  [ "$(dpkg-deb --field "$package" Package)" = releap ] || fail "$package is not the package of Releap"

  wanted=$(dpkg-deb --field "$package" Version)
  # shellcheck disable=SC2016 # a format of dpkg-query
  present=$(dpkg-query --show --showformat '${db:Status-Status} ${Version}' releap 2>/dev/null || true)
  if [ "$present" = "installed $wanted" ]; then
    echo "Releap $wanted is installed already."
    return
  fi
  [ "$(id -u)" = 0 ] || fail 'needs root: start it with sudo'
  export DEBIAN_FRONTEND=noninteractive
  install="apt-get -q -y -o DPkg::Lock::Timeout=300 install ./$package"
  # With old lists of packages a dependency may not be found.
  $install || { apt-get -q update && $install; } || fail 'apt-get could not install the package, see above'
  next_steps
}

next_steps() {
  cat <<'TEXT'

Releap is installed. Next:

  rlp doctor                              # what this machine can do
  systemctl enable --now releap           # the whole service on this machine, at 127.0.0.1:7070
  journalctl -fu releap                   # until it says that it is ready
  rlp run --rm busybox -- uname -a        # a first sandbox, as root

Configuration: /etc/releap/releap.env. A machine of several enables releap-runner, releap-control or releap-gateway instead.
TEXT
}

uninstall() {
  [ "$(id -u)" = 0 ] || fail 'needs root: start it with sudo'
  if ! dpkg-query --show releap >/dev/null 2>&1; then
    echo 'Releap is not installed.'
    return
  fi
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 remove releap
  echo 'Releap is removed. /var/lib/releap and /etc/releap stay: see "Remove" in docs/operate/install.md.'
}

from=$RELEASES
action=install_package
while [ $# -gt 0 ]; do
  case $1 in
    --from)
      [ $# -ge 2 ] || fail '--from needs a folder or a URL'
      from=$2
      shift
      ;;
    --uninstall) action=uninstall ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      fail "unknown argument: $1"
      ;;
  esac
  shift
done
$action
