/**
 * Shell programs for guests. A process that an emulated guest starts costs its host some 20 ms of a processor, so loops are made
 * of builtins: `read -t` waits without one.
 */

/** Counts in /dev/shm/count, in the background; its pid is in /dev/shm/pid. */
export const COUNTER = `[ -e /dev/shm/tick ] || mkfifo /dev/shm/tick
  (exec 3<> /dev/shm/tick; i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; read -t 0.3 x <&3; done) > /dev/null 2>&1 & echo $! > /dev/shm/pid
  while [ ! -e /dev/shm/count ]; do usleep 20000; done`;

/** Succeeds as soon as `COUNTER` has counted on; fails when its process has ended, or is frozen for two minutes. */
export const COUNTS = `read pid < /dev/shm/pid; kill -0 $pid || exit 1; read then < /dev/shm/count; now=$then; tries=0
  while [ "$now" = "$then" ]; do tries=$((tries+1)); [ $tries -lt 1200 ] || exit 1; read -t 0.1 x <> /dev/shm/tick; read now < /dev/shm/count; done`;
