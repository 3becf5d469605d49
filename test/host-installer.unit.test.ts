/** The script of the DaemonSet that makes nodes hosts, with programs of a node that only record what they are told. */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';

const SCRIPT = path.resolve(import.meta.dirname, '../deploy/helm/releap/files/install-host.sh');

/** `nsenter` leads to the folder of the node: absolute paths in arguments are below it. */
const PROGRAMS: Record<string, string> = {
  nsenter: `
while [ "$1" != -- ]; do shift; done
shift
for argument do
  shift
  case $argument in
    /etc/* | /var/*) set -- "$@" "$NODE$argument" ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "$@"`,
  'systemd-run': `
while [ "$1" != -- ]; do shift; done
shift
exec "$@"`,
  systemctl: `
case "$1 $2" in
  'show --property=LoadState') [ -e "$NODE/unit" ] && echo loaded || echo not-found ;;
  'show --property=KillMode') cat "$NODE/unit" ;;
  *) echo "systemctl $*" >>"$NODE/log" ;;
esac`,
  'apt-get': `
echo "apt-get $*" >>"$NODE/log"
[ ! -e "$NODE/no-lists" ] || [ "$2" = update ] || exit 100
rm -f "$NODE/no-lists"
[ "$2" = update ] || { touch "$NODE/installed"; [ -e "$NODE/unit" ] || echo process >"$NODE/unit"; }`,
  dpkg: 'true',
  'dpkg-query': `
[ -e "$NODE/installed" ] || exit 1
case $* in *showformat*) printf installed ;; *) printf 'releap\\t1.2.3\\n' ;; esac`,
  wget: 'cp "$NODE/release.deb" "$3"',
  releap: `
echo "releap $*" >>"$NODE/log"
mkdir -p "$NODE/var/lib/releap/runner"
echo "$*" >"$NODE/var/lib/releap/runner.env"
echo credential >"$NODE/var/lib/releap/runner/credential"`,
};

async function makeNode(context: TestContext) {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-node-'));
  context.after(() => rm(folder, { recursive: true }));
  const at = (name: string): string => path.join(folder, name);
  await mkdir(at('bin'));
  for (const [name, text] of Object.entries(PROGRAMS)) {
    await writeFile(at(`bin/${name}`), `#!/bin/sh\n${text}\n`);
    await chmod(at(`bin/${name}`), 0o755);
  }
  await mkdir(at('scratch'));
  await writeFile(at('release.deb'), 'package 1');
  await writeFile(at('settings'), 'RELEAP_CPU_TYPE=standard\n');
  await writeFile(at('token'), 'rlpjoin_abc');
  let sha256 = createHash('sha256').update('package 1').digest('hex');
  const run = (command = 'once') => {
    const { status, stdout, stderr } = spawnSync('sh', [SCRIPT, command], {
      encoding: 'utf8',
      env: {
        PATH: `${at('bin')}:${process.env['PATH'] ?? ''}`,
        NODE: folder,
        SCRATCH: at('scratch'),
        UNIT: 'releap-runner.service',
        NODE_NAME: 'node-1',
        DATA_HOST: '10.0.0.7',
        PACKAGE_URL: 'https://releases.example.org/releap.deb',
        PACKAGE_SHA256: sha256,
        SETTINGS_FILE: at('settings'),
        TOKEN_FILE: at('token'),
      },
    });
    return { status, output: stdout + stderr };
  };
  return {
    at,
    run,
    /** What has been done since the last call. */
    async done(): Promise<string[]> {
      const text = await readFile(at('log'), 'utf8').catch(() => '');
      await rm(at('log'), { force: true });
      return text
        .split('\n')
        .filter((line) => /^(apt-get.*install |releap|systemctl (?:start|restart|enable))/.test(line));
    },
    async release(text: string): Promise<void> {
      await writeFile(at('release.deb'), text);
      sha256 = createHash('sha256').update(text).digest('hex');
    },
  };
}

const INSTALL = /^apt-get .* install \S+\/var\/lib\/releap-installer\/releap\.deb$/;
const JOIN = 'releap join rlpjoin_abc --name node-1 --data-host 10.0.0.7';
const ENABLE = 'systemctl enable --quiet releap-runner.service';

test('a node becomes a host; a second run changes nothing, and another package or setting is an update', async (context) => {
  const node = await makeNode(context);
  assert.equal(node.run('ready').status, 1);
  const first = node.run();
  assert.equal(first.status, 0, first.output);
  assert.match(first.output, /node-1 is a host: releap\t1\.2\.3/);
  const [install, ...others] = await node.done();
  assert.match(install ?? '', INSTALL);
  assert.deepEqual(others, [JOIN, ENABLE, 'systemctl restart releap-runner.service']);
  assert.equal(existsSync(node.at('var/lib/releap-installer/releap.deb')), false);
  assert.equal(node.run('ready').status, 0);
  const settings = node.at('etc/releap/kubernetes.env');
  assert.equal(await readFile(settings, 'utf8'), 'RELEAP_CPU_TYPE=standard\n');
  const dropIn = await readFile(
    node.at('etc/systemd/system/releap-runner.service.d/kubernetes.conf'),
    'utf8',
  );
  assert.equal(dropIn, '[Service]\nEnvironmentFile=/etc/releap/kubernetes.env\n');
  assert.equal(execFileSync('stat', ['-c', '%a', settings], { encoding: 'utf8' }), '600\n');

  assert.equal(node.run().status, 0);
  assert.deepEqual(await node.done(), [JOIN, ENABLE, 'systemctl start releap-runner.service']);

  await rm(node.at('token'));
  await writeFile(node.at('settings'), 'RELEAP_CPU_TYPE=fast\n');
  assert.equal(node.run().status, 0, 'a host that has joined needs no token');
  assert.deepEqual(await node.done(), [ENABLE, 'systemctl restart releap-runner.service']);

  await node.release('package 2');
  assert.equal(node.run().status, 0);
  assert.match((await node.done())[0] ?? '', INSTALL);
});

test('lists of packages that are too old are updated once', async (context) => {
  const node = await makeNode(context);
  await writeFile(node.at('no-lists'), '');
  const { status, output } = node.run();
  assert.equal(status, 0, output);
});

test('a unit that would end its sandboxes is neither stopped nor updated', async (context) => {
  const node = await makeNode(context);
  await writeFile(node.at('unit'), 'control-group\n');
  const { status, output } = node.run();
  assert.equal(status, 1);
  assert.match(
    output,
    /KillMode=control-group, which ends sandboxes with it: it must be process\. Nothing was changed/,
  );
  assert.deepEqual(await node.done(), []);
});

test('a package with another checksum is not installed', async (context) => {
  const node = await makeNode(context);
  await writeFile(node.at('release.deb'), 'something else');
  const { status, output } = node.run();
  assert.equal(status, 1);
  assert.match(output, /the package has the SHA-256 [0-9a-f]{64}, and not [0-9a-f]{64}: it is not installed/);
  assert.deepEqual(await node.done(), []);
});

test('a node that has not joined and has no token says what is missing', async (context) => {
  const node = await makeNode(context);
  await rm(node.at('token'));
  const { status, output } = node.run();
  assert.equal(status, 1);
  assert.match(output, /node-1 has not joined yet, and there is no join token/);
});
