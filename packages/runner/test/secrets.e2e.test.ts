/** Secrets in a real guest: what it trusts, what leaves it, and what a fork and a resumed sandbox may use. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { SandboxSpec } from '@releap/contract';
import { filesWith } from '@releap/testing/find-text';
import {
  resolveSecretZone,
  SECRET_NAME,
  SECRET_VALUE as VALUE,
  secretPlaceholder as token,
  startSecretEgress,
  type SecretEgress,
} from '@releap/testing/secret-egress';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { feed, installGoProgram } from './support/go-program.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { createInternet } from './support/namespaces.ts';
import { startNameServer } from './support/network-world.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const SOURCE = '41111111-2222-4333-8444-0000000000a1';
const FORK = '41111111-2222-4333-8444-0000000000a2';
const STRANGER = '41111111-2222-4333-8444-0000000000a3';
const TOKENS: Record<string, string> = { [SOURCE]: token('s0urce'), [FORK]: token('f0rk') };
/** Placeholders that a sandbox may use: its own, and those of its source. */
const VALID: Record<string, string[]> = {
  [SOURCE]: [token('s0urce')],
  [FORK]: [token('f0rk'), token('s0urce')],
};

const stack = new AsyncDisposableStack();
let runner: TestRunner;
let egress: SecretEgress;
let home: string;

before(async () => {
  home = await temporaryFolder('releap-secrets-');
  const internet = stack.use(await createInternet(`t${process.pid}-inet`));
  egress = await startSecretEgress(internet, (vmId) => VALID[vmId] ?? [], stack, true);
  const nameServer = await startNameServer(resolveSecretZone, 30, stack);
  runner = await TestRunner.open(home, { nameServer, network: egress.network });
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
    env: { ...SPEC.env, [SECRET_NAME]: TOKENS[id] ?? '' },
    egress_secrets: { domains: ['api.example'], trust: egress.guests.certificate },
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
  assert.equal(bundle, egress.guests.certificate);
  assert.equal(await runner.sh(SOURCE, 'cat "$NODE_EXTRA_CA_CERTS"'), egress.guests.certificate);
  assert.equal(await runner.sh(STRANGER, 'echo "$SSL_CERT_FILE"; ls /etc/ssl 2>/dev/null || true'), '\n');
});

test('a program speaks HTTPS with the value: split, compressed; a redirect and another authority carry nothing away', async () => {
  await installGoProgram(runner, SOURCE, 'https-client');
  // The other host is not intercepted: its own certificate arrives.
  await feed(runner, SOURCE, 'cat "$SSL_CERT_FILE" - > /trusted.pem', await readFile(egress.serverAuthority));
  const key = TOKENS[SOURCE] ?? '';
  const url = 'https://api.example/';
  const body = `a=${key}&b=${key}`;
  const requests = [
    { url, key },
    { url, key, body, piece: 7 },
    { url, key, body, piece: 5, gzip: true },
    { url: 'https://other.example/', key, body },
    { url: 'https://api.example/redirect', key },
    // As a client that takes one connection of HTTP/2 for all names of a certificate.
    { url, key, host: 'other.example' },
  ];
  const said = await feed(
    runner,
    SOURCE,
    'SSL_CERT_FILE=/trusted.pem /https-client',
    JSON.stringify(requests),
  );
  const outcomes = JSON.parse(said) as string[];
  const filled = body.replaceAll(key, VALUE).length;
  const seen = (length: number): RegExp => new RegExp(`^HTTP/2\\.0 200 .*"seen":${length}[,}]`);
  for (const outcome of outcomes.slice(0, 3)) assert.match(outcome, seen(VALUE.length));
  for (const outcome of outcomes.slice(1, 3)) assert.match(outcome, new RegExp(`"length":${filled},`));
  for (const outcome of outcomes.slice(3, 5)) assert.match(outcome, seen(key.length));
  assert.match(outcomes[3] ?? '', new RegExp(`"length":${body.length},`));
  assert.match(outcomes[4] ?? '', new RegExp(`"url":"/\\?from=${key}"`));
  assert.match(outcomes[5] ?? '', /^HTTP\/2\.0 421 /);
  for (const outcome of outcomes) assert.ok(!outcome.includes(VALUE), outcome);
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
