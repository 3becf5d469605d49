/** Secrets in a real guest: what it trusts, what leaves it, and what a fork and a resumed sandbox may use. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { SandboxSpec } from '@releap/contract';
import { testAuthority, type TestAuthority } from '@releap/testing/certificates';
import { filesWith } from '@releap/testing/find-text';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isolateNetwork } from './support/isolated-network.ts';
import { createInternet, type Namespace } from './support/namespaces.ts';
import { startNameServer } from './support/network-world.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const SOURCE = '41111111-2222-4333-8444-0000000000a1';
const FORK = '41111111-2222-4333-8444-0000000000a2';
const STRANGER = '41111111-2222-4333-8444-0000000000a3';
const token = (seed: string): string => `rlps_${seed.repeat(43).slice(0, 43)}`;
const TOKENS: Record<string, string> = { [SOURCE]: token('s0urce'), [FORK]: token('f0rk') };
/** Placeholders that a sandbox may use: its own, and those of its source. */
const VALID: Record<string, string[]> = {
  [SOURCE]: [token('s0urce')],
  [FORK]: [token('f0rk'), token('s0urce')],
};
const VALUE = 'a-value-that-no-guest-sees-4d7a';
const ZONE: Record<string, string> = { 'api.example': '203.0.113.2', 'other.example': '203.0.113.3' };
const RUN_DIR = `/run/releap-test-${process.pid}`;

const stack = new AsyncDisposableStack();
let runner: TestRunner;
let internet: Namespace;
let guests: TestAuthority;
let home: string;

before(async () => {
  home = await temporaryFolder('releap-secrets-');
  internet = stack.use(await createInternet(`t${process.pid}-inet`));
  guests = await testAuthority('guests');
  const servers = await testAuthority('servers');
  const keyAndCertificate = await servers.issue('api.example', 'other.example');
  const files = await temporaryFolder('releap-pem-');
  stack.defer(() => rm(files, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(keyAndCertificate)) await writeFile(join(files, name), text);
  const server = fileURLToPath(new URL('support/echo-server.mjs', import.meta.url));
  const echo = spawn(
    'nsenter',
    [`--net=${internet.path}`, '--', process.execPath, server, join(files, 'key'), join(files, 'cert')],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  internet.keep(echo);
  await once(echo.stdout, 'data');
  const nameServer = await startNameServer(
    (name) => (ZONE[name] === undefined ? undefined : [ZONE[name]]),
    30,
    stack,
  );
  stack.defer(() => rm(RUN_DIR, { recursive: true, force: true }));
  const secretsOf = (id: string) =>
    (VALID[id] ?? []).map((one) => ({
      name: 'KEY',
      value: VALUE,
      allowed_domains: ['api.example'],
      placeholders: [createHash('sha256').update(one).digest('hex')],
    }));
  runner = await TestRunner.open(home, {
    nameServer,
    network: {
      runDir: RUN_DIR,
      secrets: {
        extraCa: servers.certificate,
        source: {
          certificate: (request) => guests.signIntermediate(request),
          changed: (known) =>
            Promise.resolve({
              sandboxes: known
                .filter(({ revision }) => revision === undefined)
                .map(({ id }) => ({ id, revision: '1', secrets: secretsOf(id) })),
              more: false,
            }),
        },
      },
    },
  });
  stack.defer(() => runner.dispose());
  runner.spec = specOf(SOURCE);
  runner.want(SOURCE, 1, 'running');
  runner.spec = SPEC;
  runner.want(STRANGER, 1, 'running');
  for (const id of [SOURCE, STRANGER]) await runner.reported(1, 'running', { of: id });
});
after(() => stack.disposeAsync());

function specOf(id: string): SandboxSpec {
  return {
    ...SPEC,
    env: { ...SPEC.env, KEY: TOKENS[id] ?? '' },
    egress_secrets: { domains: ['api.example'], trust: guests.certificate },
  };
}

/** What the server saw, as the guest is told. */
async function send(
  id: string,
  { host = 'api.example', key = '$KEY' } = {},
): Promise<Record<string, unknown>> {
  const text = await runner.sh(id, `wget -q -O - --header "X-Key: ${key}" http://${host}:8080/`);
  return JSON.parse(text) as Record<string, unknown>;
}

test('the guest sees a placeholder, the server the value', async () => {
  assert.deepEqual(await send(SOURCE), {
    url: '/',
    body: '',
    host: 'api.example:8080',
    key: TOKENS[SOURCE],
    seen: VALUE.length,
  });
  const elsewhere = await send(SOURCE, { host: 'other.example' });
  assert.equal(elsewhere['seen'], TOKENS[SOURCE]?.length);
});

test('the guest trusts the root from its start; one without secrets gets nothing', async () => {
  const bundle = await runner.sh(SOURCE, 'cat "$SSL_CERT_FILE"');
  assert.equal(bundle, guests.certificate);
  assert.equal(await runner.sh(SOURCE, 'cat "$NODE_EXTRA_CA_CERTS"'), guests.certificate);
  assert.equal(await runner.sh(STRANGER, 'echo "$SSL_CERT_FILE"; ls /etc/ssl 2>/dev/null || true'), '\n');
});

test('a placeholder of another sandbox is sent as it is', async () => {
  const stolen = await send(STRANGER, { key: TOKENS[SOURCE] ?? '' });
  assert.equal(stolen['seen'], TOKENS[SOURCE]?.length);
});

test('a fork uses its own placeholder and that in its memory; its source does not use the fork’s', async () => {
  // A process that has its environment from before the fork.
  await runner.sh(
    SOURCE,
    'mkfifo /go; (read x </go; wget -q -O /old --header "X-Key: $KEY" http://api.example:8080/) >/dev/null 2>&1 &',
  );
  runner.spec = { ...specOf(FORK), origin: { type: 'fork', vm_id: SOURCE } };
  runner.want(FORK, 1, 'running');
  await runner.reported(1, 'running', { of: FORK });
  assert.deepEqual(await send(FORK).then(({ key, seen }) => [key, seen]), [TOKENS[FORK], VALUE.length]);
  const old = await runner.sh(FORK, 'echo >/go; while [ ! -s /old ]; do sleep 0.2; done; cat /old');
  assert.equal((JSON.parse(old) as Record<string, unknown>)['seen'], VALUE.length);
  assert.equal((await send(SOURCE, { key: TOKENS[FORK] ?? '' }))['seen'], TOKENS[FORK]?.length);
});

test('after a pause and a resume they still work, and the value is in no file', async () => {
  runner.spec = specOf(SOURCE);
  runner.want(SOURCE, 2, 'paused');
  await runner.reported(2, 'paused', { of: SOURCE });
  assert.deepEqual(filesWith(home, VALUE), []);
  runner.want(SOURCE, 3, 'running', { start_from: 'memory' });
  await runner.reported(3, 'running', { of: SOURCE });
  assert.equal((await send(SOURCE))['seen'], VALUE.length);
});
