/**
 * A user's commands on a machine without systemd: installs `/dist`, runs a sandbox without a resolver of names, upgrades to `/next.deb` while the
 * sandbox runs, and removes the package. The home is $RELEAP_HOME.
 */
export const PACKAGE_WALK = `
set -e
trap 'cat /service.log' EXIT
touch /service.log
start() {
  RELEAP_KEEP_SANDBOXES=1 releap >/service.log 2>&1 & service=$!
  until grep -q 'Releap is ready' /service.log; do
    kill -0 $service
    sleep 1
  done
}
sh /dist/install.sh --from /dist
sh /dist/install.sh --from /dist | grep 'is installed already'
rm /etc/resolv.conf
start
rlp run --rm busybox -- uname -a
rlp doctor
rlp run --name kept busybox
rlp exec kept -- sh -c 'echo from before >/kept'
echo '#kept' >>/etc/releap/releap.env
kill -TERM $service
wait $service
dpkg -i /next.deb
dpkg-query --show --showformat 'now \${Version}\\n' releap
[ "$(tail -n 1 /etc/releap/releap.env) $(stat -c %a /etc/releap/releap.env)" = '#kept 600' ]
start
rlp exec kept -- cat /kept
kill -INT $service
wait $service
mkdir -p /var/lib/releap-control /var/lib/releap-gateway
touch /var/lib/releap-control/remove-on-purge
sh /dist/install.sh --uninstall
[ -e /etc/releap/releap.env ]
dpkg --purge releap
[ ! -e /etc/releap ] && [ ! -e /usr/lib/releap ] && [ ! -e /var/lib/releap-control ]
[ -d /var/lib/releap-gateway ] && [ -d "$RELEAP_HOME/postgres" ]
trap - EXIT
echo walked
`;
