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
# A VMM has no children of its own, but its instant copies (process-copy.pl) are born as such and it waits for none of
# them: where SIGCHLD is ignored, which outlasts exec, the kernel keeps no dead. Debian's sh cannot ignore that one.
if [ "$netns" = new ]; then
  exec env --ignore-signal=CHLD unshare --net -- "$@"
fi
exec env --ignore-signal=CHLD nsenter --net="$netns" -- "$@"
