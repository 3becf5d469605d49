/**
 * From a machine with Node, npm and `mount` to a sandbox, by the lines of the README. Most of its minutes are downloads: in
 * the nightly run, or alone with `RELEAP_TEST_BARE=trixie,bookworm`.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { isNightly } from '@releap/testing/repetitions';
import { Uplink } from './support/uplink.ts';

const REPO = fileURLToPath(new URL('..', import.meta.url));
const SUITES = process.env['RELEAP_TEST_BARE']?.split(',') ?? (isNightly() ? ['trixie', 'bookworm'] : []);
const MINUTES = 40;
const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';

/** The commands of a user, the second terminal included; `$1` is the file for the service's output. */
const WALK = `
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

/** The root folder of a machine that has just been installed, with the files of this repository as a clone has them. */
async function bareRoot(root: string, suite: string): Promise<void> {
  const wanted = ['--variant=apt', '--include=nodejs,npm,mount', '--aptopt=APT::Install-Recommends "false"'];
  execFileSync('mmdebstrap', [...wanted, suite, root], { stdio: ['ignore', 'ignore', 'inherit'] });
  // The network configuration of this machine.
  await mkdir(join(root, CERTIFICATES, '..'), { recursive: true });
  await copyFile(CERTIFICATES, join(root, CERTIFICATES));
  await copyFile('/etc/resolv.conf', join(root, 'etc/resolv.conf'));
  await mkdir(join(root, 'releap'));
  const known = ['ls-files', '-z', '--cached', '--others', '--exclude-standard'];
  await writeFile(join(root, 'list'), execFileSync('git', known, { cwd: REPO, maxBuffer: 2 ** 26 }));
  const archive = join(root, 'releap.tar');
  execFileSync('tar', [
    '-C',
    REPO,
    '--null',
    '-T',
    join(root, 'list'),
    '--ignore-failed-read',
    '-cf',
    archive,
  ]);
  execFileSync('tar', ['-xf', archive, '-C', join(root, 'releap')]);
  await writeFile(join(root, 'walk.sh'), WALK);
}

/** Runs `walk.sh` in it, with mounts, processes, IPC and a host name of its own; all of it ends with the process. */
function enter(root: string, home: string, { namespace }: Uplink): ChildProcess {
  const env = {
    PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    HOME: '/root',
    LANG: 'C.UTF-8',
    NODE_EXTRA_CA_CERTS: CERTIFICATES,
    RELEAP_HOME: home,
    RELEAP_PORT: '0',
  };
  const script = `set -e; mount --bind "$0" "$0"; cd "$0"
    mount --rbind /dev dev; mount -t sysfs sysfs sys; mount --rbind /sys/fs/cgroup sys/fs/cgroup; mount -t proc proc proc; mount -t tmpfs tmpfs run; mkdir run/lock
    exec chroot . /usr/bin/env -i "$@" sh /walk.sh /service.log`;
  const apart = ['--mount', '--pid', '--ipc', '--uts', '--fork', '--kill-child', '--propagation', 'private'];
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  const command = ['unshare', ...apart, 'sh', '-c', script, root, ...variables];
  return spawn('nsenter', [`--net=/run/netns/${namespace}`, '--', ...command], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
}

/** Links of the service of a home, outside of its root folder: named by a hash of the home. */
function leftOf(home: string, uplink: Uplink): string[] {
  const tag = createHash('sha256').update(home).digest('hex').slice(0, 8);
  return uplink.links().filter((name) => name.includes(tag));
}

describe('a bare machine', {
  skip: SUITES.length === 0 && 'takes minutes: nightly, or with RELEAP_TEST_BARE',
}, () => {
  for (const suite of SUITES) {
    it(`with Debian ${suite} runs a sandbox after the lines of the README`, {
      timeout: MINUTES * 60_000,
    }, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'releap-bare-'));
      const root = join(folder, 'root');
      const home = `/var/lib/releap-${suite}-${process.pid}`;
      using uplink = Uplink.make(`bare-${suite.slice(0, 4)}`);
      let walk: ChildProcess | undefined;
      try {
        await bareRoot(root, suite);
        walk = enter(root, home, uplink);
        let output = '';
        walk.stdout?.on('data', (chunk: Buffer) => {
          output = (output + chunk.toString()).slice(-20_000);
        });
        const [code] = (await once(walk, 'close')) as [number | null];
        assert.equal(code, 0, output);
        assert.match(output, /^Linux \S+ .* x86_64 GNU\/Linux$/m);
        assert.match(output, /VMM +QEMU (?:8\.[2-9]|9|1\d)/);
        assert.match(output, /ended in order\n$/);
        assert.deepEqual(leftOf(home, uplink), []);
      } finally {
        walk?.kill('SIGKILL');
        await rm(folder, { recursive: true, force: true });
      }
    });
  }
});
