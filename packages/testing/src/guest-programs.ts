/**
 * Shell programs for guests. A process that an emulated guest starts costs its host some 20 ms of a processor, so loops are made
 * of builtins: `read -t` waits without one.
 */

/** Counts in /dev/shm/count, in the background; its pid is in /dev/shm/pid. */
export const COUNTER = `[ -e /dev/shm/tick ] || mkfifo /dev/shm/tick
  (exec 3<> /dev/shm/tick; i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; read -t 0.3 x <&3; done) > /dev/null 2>&1 & echo $! > /dev/shm/pid
  while [ ! -e /dev/shm/count ]; do usleep 20000; done`;

/**
 * Succeeds as soon as `COUNTER` has counted on; fails when its process has ended, or is frozen for two minutes. The counter's
 * `>` truncates before it writes, so a reader may find an empty file: that is no count, and its `read` must not be the status.
 */
export const COUNTS = `read pid < /dev/shm/pid; kill -0 $pid || exit 1; then=; now=; tries=0
  while [ -z "$now" ] || [ "$now" = "$then" ]; do
    tries=$((tries+1)); [ $tries -lt 1200 ] || exit 1
    read now < /dev/shm/count; then=\${then:-$now}
    [ "$now" != "$then" ] || read -t 0.1 x <> /dev/shm/tick
  done; true`;
