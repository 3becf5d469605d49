/**
 * The commands of a user after the lines of the README, those of the second terminal included; `$1` is the file for the service's
 * output. The home is $RELEAP_HOME.
 */
export const README_WALK = `
cd /releap
npm start > "$1" 2>&1 & service=$!
trap 'cat "$1"' EXIT
until node -e '
  const { base_url } = JSON.parse(require("fs").readFileSync(process.env.RELEAP_HOME + "/bootstrap.json"));
  fetch(base_url + "/healthz").then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1));
' 2> /dev/null; do
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
