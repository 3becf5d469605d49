/**
 * The commands of a user after the lines of the README, those of the second terminal included; `$1` is the file for the service's
 * output. The home is $RELEAP_HOME.
 */
export const README_WALK = `
cd /releap
npm start > "$1" 2>&1 & service=$!
trap 'cat "$1"' EXIT
until grep -q 'Releap is ready' "$1"; do
  kill -0 $service || exit 1
  sleep 1
done
npx rlp run --rm busybox -- uname -a || exit 1
npx rlp doctor || exit 1
kill -TERM $service
wait $service || exit 1
trap - EXIT
echo ended in order
`;
