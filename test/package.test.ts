/**
 * What `npm run package` makes, on machines that have just been installed, and as a container. It takes minutes: in the nightly run, or
 * with `RELEAP_TEST_PACKAGE=bookworm,trixie`.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { chown, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { connect, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { until } from '@releap/testing/eventually';
import { emptyDatabase } from '@releap/testing/postgres';
import { freePort } from '@releap/testing/ports';
import { isNightly } from '@releap/testing/repetitions';
import { REPO } from '@releap/testing/service';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { enterRoot, installDebian } from './support/debian-root.ts';
import { PACKAGE_WALK, SYSTEMD_WALK } from './support/package-walk.ts';
import { runUnderSystemd, SYSTEMD_PACKAGES } from './support/systemd-root.ts';
import { Uplink } from './support/uplink.ts';

const SUITES = process.env['RELEAP_TEST_PACKAGE']?.split(',') ?? (isNightly() ? ['trixie', 'bookworm'] : []);
const MINUTES = 40;
const DIST = join(REPO, 'dist');
const run = promisify(execFile);

interface Descriptor {
  digest: string;
}

async function makePackages(): Promise<string> {
  await run(process.execPath, [join(REPO, 'setup/package/main.mjs')], { maxBuffer: 2 ** 24 });
  return await readFile(join(DIST, 'SHA256SUMS'), 'utf8');
}

async function fileOf(end: string): Promise<string> {
  const name = (await readdir(DIST)).find((file) => file.endsWith(end));
  return join(DIST, name ?? assert.fail(`dist has no ${end}`));
}

describe('packages', {
  skip: SUITES.length === 0 && 'takes minutes: nightly, or with RELEAP_TEST_PACKAGE',
}, () => {
  let sums: string;
  let scratch: string;
  before(async () => {
    scratch = await temporaryFolder('package-');
    sums = await makePackages();
  });

  it('are the same from each build', { skip: !isNightly() && 'in the nightly run' }, async () => {
    assert.equal(await makePackages(), sums);
  });

  for (const suite of SUITES) {
    it(`run a sandbox on a fresh Debian ${suite}, through an upgrade, and are removed`, {
      timeout: MINUTES * 60_000,
    }, async () => {
      const root = join(scratch, suite);
      const home = `/var/lib/releap-${suite}-${process.pid}`;
      using uplink = Uplink.make(`pack-${suite.slice(0, 4)}`);
      let walk: ChildProcess | undefined;
      try {
        await installDebian(root, suite, ['mount']);
        execFileSync('cp', ['-r', DIST, join(root, 'dist')]);
        await makeNext(await fileOf('.deb'), join(root, 'next.deb'));
        await writeFile(join(root, 'walk.sh'), PACKAGE_WALK);
        walk = enterRoot(root, ['sh', '/walk.sh'], {
          env: { RELEAP_HOME: home, RELEAP_PORT: '0', RELEAP_BUILTIN_IMAGES: 'busybox' },
          namespace: uplink.namespace,
          stdio: ['ignore', 'pipe', 'pipe'],
        });
        let output = '';
        for (const stream of [walk.stdout, walk.stderr])
          stream?.on('data', (chunk: Buffer) => (output = (output + chunk.toString()).slice(-30_000)));
        const [code] = (await once(walk, 'close')) as [number | null];
        assert.equal(code, 0, output);
        assert.match(output, /^Linux \S+ .* x86_64 GNU\/Linux$/m);
        assert.match(output, /This machine can host sandboxes\./);
        assert.match(output, /^now \S+\+next$/m);
        assert.match(output, /^from before$/m);
        assert.match(output, /^walked$/m);
        const tag = createHash('sha256').update(home).digest('hex').slice(0, 8);
        assert.deepEqual(
          uplink.links().filter((name) => name.includes(tag)),
          [],
        );
      } finally {
        walk?.kill('SIGKILL');
      }
    });
  }

  // The systemd of Debian 13 refuses control groups of version 1, which this machine may have.
  it('keep a sandbox through all that happens to the service under systemd', {
    skip: !SUITES.includes('bookworm') && 'not for bookworm',
    timeout: MINUTES * 60_000,
  }, async () => {
    const root = join(scratch, 'systemd');
    using uplink = Uplink.make('pack-systemd');
    await installDebian(root, 'bookworm', SYSTEMD_PACKAGES);
    execFileSync('cp', ['-r', DIST, join(root, 'dist')]);
    await makeNext(await fileOf('.deb'), join(root, 'next.deb'));
    const { namespace } = uplink;
    const { code, output } = await runUnderSystemd(root, SYSTEMD_WALK, { env: {}, namespace });
    assert.equal(code, 0, output);
    assert.equal(output.match(/^from before$/gm)?.length, 4, output);
    assert.match(output, /^walked$/m);
  });

  /** The same package with a later version, not compressed. */
  async function makeNext(deb: string, next: string): Promise<void> {
    const folder = `${next}.d`;
    await run('dpkg-deb', ['--raw-extract', deb, folder]);
    const control = join(folder, 'DEBIAN/control');
    const text = await readFile(control, 'utf8');
    await writeFile(control, text.replace(/^(Version: .*)$/m, '$1+next'));
    await run('dpkg-deb', ['-Znone', '--build', folder, next]);
    execFileSync('rm', ['-r', folder]);
  }

  describe('the image', () => {
    let database: Server;
    let url: string;
    let root: string;
    let config: { Entrypoint: string[]; Env: string[]; User: string };
    before(async () => {
      ({ root, config } = await unpackImage(await fileOf('.tar'), scratch));
      // The server listens on a socket of its user alone.
      const [, user, name, folder = ''] =
        /^postgres:\/\/(\w+)@\/(\w+)\?host=(.*)$/.exec(await emptyDatabase()) ?? [];
      database = createServer((client) => {
        const server = connect(join(decodeURIComponent(folder), '.s.PGSQL.5432'));
        for (const [from, to] of [
          [client, server],
          [server, client],
        ] as const)
          from.on('error', () => to.destroy()).pipe(to);
      }).listen(0, '127.0.0.1');
      await once(database, 'listening');
      const address = database.address();
      const port = typeof address === 'object' ? address?.port : undefined;
      url = `postgresql://${user}@127.0.0.1:${port}/${name}`;
    });
    after(() => database?.close());

    it('migrates a database and serves the API, unprivileged and with a read-only root, until SIGTERM', async () => {
      const home = join(scratch, 'container-home');
      await mkdir(home, { mode: 0o700 });
      await chown(home, 65532, 65532);
      const migrated = await contain('migrate');
      const [code] = (await once(migrated.process, 'close')) as [number];
      assert.equal(code, 0, migrated.output());
      assert.match(migrated.output(), /the database is up to date/);

      const [port, internal] = [await freePort(), await freePort()];
      const env = [`RELEAP_PORT=${port}`, `RELEAP_INTERNAL_PORT=${internal}`, 'RELEAP_MIGRATIONS=wait'];
      const control = await contain('control', [
        'RELEAP_HOST=127.0.0.1',
        'RELEAP_INTERNAL_HOST=127.0.0.1',
        ...env,
      ]);
      const ended = once(control.process, 'close');
      try {
        await until(async () => {
          assert.equal(control.process.exitCode, null, control.output());
          const answer = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => undefined);
          return answer?.status === 200;
        });
        assert.equal((await fetch(`http://127.0.0.1:${port}/livez`)).status, 200);
        assert.equal((await fetch(`http://127.0.0.1:${port}/openapi.json`)).status, 200);
      } finally {
        await run('runc', ['kill', control.name, 'TERM']).catch(() => undefined);
      }
      assert.equal(((await ended) as [number])[0], 0, control.output());

      const gateway = await contain('gateway', ['RELEAP_CONTROL_URL=http://127.0.0.1:1']);
      assert.notEqual(((await once(gateway.process, 'close')) as [number])[0], 0);
      // Its home is the one of that control server, so it has the token; it may not serve over plain HTTP.
      assert.match(gateway.output(), /RELEAP_HOST=0\.0\.0\.0: .*plain HTTP/);

      async function contain(role: string, more: readonly string[] = []) {
        const name = `releap-test-${role}-${process.pid}`;
        const bundle = join(scratch, name);
        await mkdir(bundle);
        const [uid, gid] = config.User.split(':').map(Number);
        const spec = {
          ociVersion: '1.0.2',
          process: {
            user: { uid, gid },
            args: [...config.Entrypoint, role],
            env: [...config.Env, `DATABASE_URL=${url}`, ...more],
            cwd: '/',
            noNewPrivileges: true,
            capabilities: {},
          },
          root: { path: root, readonly: true },
          mounts: [
            { destination: '/proc', type: 'proc', source: 'proc' },
            {
              destination: '/dev',
              type: 'tmpfs',
              source: 'tmpfs',
              options: ['nosuid', 'mode=755', 'size=65536k'],
            },
            {
              destination: '/tmp',
              type: 'tmpfs',
              source: 'tmpfs',
              options: ['nosuid', 'nodev', 'mode=1777'],
            },
            { destination: '/var/lib/releap', type: 'bind', source: home, options: ['rbind', 'rw'] },
          ],
          linux: { namespaces: ['pid', 'ipc', 'uts', 'mount'].map((type) => ({ type })) },
        };
        await writeFile(join(bundle, 'config.json'), JSON.stringify(spec));
        const child = spawn('runc', ['run', '--bundle', bundle, name], {
          stdio: ['ignore', 'pipe', 'pipe'],
        });
        let output = '';
        for (const stream of [child.stdout, child.stderr])
          stream.on('data', (chunk: Buffer) => (output = (output + chunk.toString()).slice(-20_000)));
        return { name, process: child, output: () => output };
      }
    });
  });
});

/** The root file system and the configuration of an image in an archive of its layout. */
async function unpackImage(archive: string, scratch: string) {
  const layout = join(scratch, 'layout');
  const root = join(scratch, 'root');
  for (const folder of [layout, root]) await mkdir(folder);
  execFileSync('tar', ['-xf', archive, '-C', layout]);
  const blob = ({ digest }: Descriptor): string => join(layout, 'blobs', digest.replace(':', '/'));
  const json = async (file: string): Promise<unknown> => JSON.parse(await readFile(file, 'utf8'));
  const { manifests } = (await json(join(layout, 'index.json'))) as { manifests: Descriptor[] };
  const [first] = manifests;
  assert.ok(first);
  const manifest = (await json(blob(first))) as { config: Descriptor; layers: Descriptor[] };
  for (const layer of manifest.layers) execFileSync('tar', ['-xzpf', blob(layer), '-C', root]);
  const { config } = (await json(blob(manifest.config))) as {
    config: { Entrypoint: string[]; Env: string[]; User: string };
  };
  return { root, config };
}
