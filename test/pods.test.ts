/**
 * A control server and a gateway as the Helm chart runs them: the user, the variables, and files of a Secret that root owns and only their group
 * reads, in a folder that they cannot write to.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { chmod, chown, mkdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream';
import { after, test } from 'node:test';
import { parseDatabaseUrl } from '@releap/database/database-url';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { emptyDatabase } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import { temporaryFolder } from '@releap/testing/temporary-folder';

const MAIN = programOf(path.join(import.meta.dirname, '../packages/server/src/main.ts'));
const MAKE_SECRETS = path.join(import.meta.dirname, '../deploy/helm/examples/make-secrets.sh');
/** As in values.yaml. */
const USER = { uid: 65_532, gid: 65_532 };
const asUser = spawnSync(process.execPath, [MAIN, '--help'], USER);

test('roles start as in pods, and a gateway is ready once it has reached the control plane', {
  skip: asUser.status !== 0 && 'needs root, and a checkout that other users may read',
}, async () => {
  const folder = await temporaryFolder('releap-pods-');
  const processes: ChildProcess[] = [];
  after(() => rm(folder, { recursive: true, force: true }));
  await chmod(path.dirname(folder), 0o755);
  await chmod(folder, 0o755);
  const secret = parseSecret(execFileSync('sh', [MAKE_SECRETS], { encoding: 'utf8' }));
  const mounted = path.join(folder, 'secrets');
  await mkdir(mounted, { mode: 0o755 });
  for (const name of ['keys.json', 'ssh_host_ed25519_key']) {
    await writeFile(path.join(mounted, name), secret[name] ?? '', { mode: 0o440 });
    await chown(path.join(mounted, name), 0, USER.gid);
  }
  const [control, gateway] = [await freePort(), await freePort()];
  const databaseUrl = await overTcp(await emptyDatabase());
  const start = async (role: string, more: Record<string, string>) => {
    const home = path.join(folder, role);
    await mkdir(home, { mode: 0o700 });
    await chown(home, USER.uid, USER.gid);
    const env = {
      PATH: path.dirname(process.execPath),
      RELEAP_HOME: home,
      RELEAP_HOST: '0.0.0.0',
      RELEAP_PUBLIC_URL: 'https://api.example.org',
      RELEAP_TOOLBOX_URL: 'https://gateway.example.org',
      RELEAP_REGION: 'main',
      RELEAP_PREVIEW_URL: 'https://preview.example.org',
      RELEAP_METRICS_TOKEN: secret['metrics-token'] ?? '',
      RELEAP_GATEWAY_TOKEN: secret['gateway-token'] ?? '',
      ...more,
    };
    const child = spawn(process.execPath, [MAIN, role], {
      ...USER,
      env,
      cwd: '/',
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    processes.push(child);
    let output = '';
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => (output = (output + chunk.toString()).slice(-20_000)));
    return { child, output: () => output };
  };
  const status = async (port: number, url: string, headers = {}): Promise<number> =>
    (await fetch(`http://127.0.0.1:${port}${url}`, { headers })).status;

  try {
    const migration = await start('migrate', { DATABASE_URL: databaseUrl });
    assert.equal(((await once(migration.child, 'close')) as [number])[0], 0, migration.output());

    const operator = secret['operator-token'] ?? '';
    const server = await start('control', {
      DATABASE_URL: databaseUrl,
      RELEAP_PORT: String(control),
      RELEAP_INTERNAL_HOST: '0.0.0.0',
      RELEAP_INTERNAL_PORT: String(control + 2),
      RELEAP_KEY_FILE: path.join(mounted, 'keys.json'),
      RELEAP_MIGRATIONS: 'wait',
      RELEAP_OPERATOR_TOKEN: operator,
      RELEAP_STORE: path.join(folder, 'control', 'store'),
      RELEAP_OIDC_ISSUER: 'https://id.example.org',
    });
    await eventually('the control server is ready', async () => {
      assert.equal(server.child.exitCode, null, server.output());
      return (await status(control, '/readyz')) === 200;
    });
    // As the notes of the chart have it.
    const answer = await fetch(`http://127.0.0.1:${control + 2}/operator/host-authority`, {
      headers: { authorization: `Bearer ${operator}` },
    });
    const { fingerprint, roots } = (await answer.json()) as { fingerprint: string; roots: string };
    assert.match(roots, /^-----BEGIN CERTIFICATE-----/);

    const settings = {
      RELEAP_PORT: String(gateway),
      RELEAP_GATEWAY_PORT: String(gateway + 1),
      RELEAP_SSH_PORT: String(gateway + 4),
      RELEAP_PREVIEW_PORT: String(gateway + 5),
      RELEAP_GATEWAY_METRICS_PORT: String(gateway + 6),
      RELEAP_SSH_HOST_KEY: path.join(mounted, 'ssh_host_ed25519_key'),
      RELEAP_PREVIEW_ENGINE: 'none',
      RELEAP_CONTROL_FINGERPRINT: fingerprint,
      RELEAP_CONTROL_URL: `https://127.0.0.1:${control + 2}`,
    };
    const edge = await start('gateway', settings);
    await eventually('the gateway is ready', async () => {
      assert.equal(edge.child.exitCode, null, edge.output());
      return (await status(gateway + 1, '/readyz')) === 200;
    });
    assert.equal(await status(gateway + 1, '/livez'), 200);
    assert.equal(await status(gateway + 6, '/metrics'), 401);
    const authorization = `Bearer ${secret['metrics-token']}`;
    assert.equal(await status(gateway + 6, '/metrics', { authorization }), 200);
    const keys = (await (
      await fetch(`http://127.0.0.1:${gateway + 1}/toolbox/ssh/host-keys`)
    ).json()) as object;
    assert.match(JSON.stringify(keys), /"ssh-ed25519 /);
    for (const { child, output } of [edge, server]) {
      const closed = once(child, 'close');
      child.kill('SIGTERM');
      assert.equal(((await closed) as [number])[0], 0, output());
      assert.doesNotMatch(output(), /"level":"(error|fatal)"|"level":[56]0/);
    }
  } finally {
    for (const child of processes) if (child.exitCode === null) child.kill('SIGKILL');
  }
});

/** The same database at a port: only the user of this process may open the socket of its server. */
async function overTcp(url: string): Promise<string> {
  const [{ host, port, url: own }] = parseDatabaseUrl(url).hosts;
  const relay = createServer((client) => {
    const server = connect(`${host}/.s.PGSQL.${port}`);
    pipeline(client, server, client, () => undefined);
  });
  relay.listen(0, '127.0.0.1').unref();
  await once(relay, 'listening');
  return own.replace(/@\/([^?]*).*$/, `@127.0.0.1:${(relay.address() as AddressInfo).port}/$1`);
}

/** `stringData` of the manifest that the script prints. */
function parseSecret(manifest: string): Record<string, string> {
  const values: Record<string, string> = {};
  let name = '';
  for (const line of (manifest.split('stringData:\n')[1] ?? '').split('\n')) {
    const [, key, value] = /^ {2}([\w.-]+): ?(.*)$/.exec(line) ?? [];
    if (key !== undefined) {
      name = key;
      values[name] = value === '|' ? '' : (value ?? '');
    } else if (line.startsWith('    ')) values[name] += `${line.slice(4)}\n`;
  }
  return values;
}
