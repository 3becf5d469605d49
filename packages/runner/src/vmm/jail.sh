#!/bin/sh
# Starts one VMM: jail.sh NETNS NOFILE FSIZE_KIB [CGROUP_PROCS...] -- COMMAND [ARG...]
#
# The cgroups are joined before the VMM exists, so that none of its memory or time is anybody else's.
# NETNS is a path for nsenter, or `new` for a namespace of its own. The VMM gives up root by itself
# (-chroot, -runas, -sandbox) once it has opened what it needs.
set -eu
netns=$1 nofile=$2 fsize=$3
shift 3
while [ "$1" != -- ]; do
  echo $$ >"$1"
  shift
done
shift
ulimit -c 0
ulimit -n "$nofile"
ulimit -f "$((fsize * 2))"
if [ "$netns" = new ]; then
  exec unshare --net -- "$@"
fi
exec nsenter --net="$netns" -- "$@"
