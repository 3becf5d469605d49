/** The commands against a real control plane and a runner that follows a script. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { parseSandboxId } from '@releap/contract';
import { testKeys } from '@releap/testing/keys';
import { OPERATOR_TOKEN } from '@releap/testing/credentials';
import { startWorld } from '@releap/testing/world';
import { home } from './home.ts';
import { type Outcome, rlpHere } from './rlp.ts';

const keys = testKeys();

const world = await startWorld({ keys });
const runner = await world.runner();
const folder = await home(null, {
  'bootstrap.json': JSON.stringify({
    base_url: world.url,
    internal_url: world.internalUrl,
    api_key: world.call.key,
  }),
  'operator.token': `${OPERATOR_TOKEN}\n`,
});
after(() => folder[Symbol.asyncDispose]());

/** As the project that the server of this machine made, or as its operator. */
function rlp(args: readonly string[], input = ''): Promise<Outcome> {
  return rlpHere(null, args, { input, env: { RELEAP_HOME: folder.path } });
}

async function succeed(args: readonly string[], input?: string): Promise<string> {
  const { code, stdout, stderr } = await rlp(args, input);
  assert.deepEqual([code, stderr], [0, ''], `rlp ${args.join(' ')}`);
  return stdout.trim();
}

test('a sandbox is run, listed, stopped, started, paused, resumed, forked and deleted', async () => {
  const id = await succeed(['run', 'busybox', '--name', 'web', '--persistent', '-p', '80', '-e', 'A=b']);
  assert.match(await succeed(['ps']), new RegExp(`^ID .*\\n${id} +web +busybox +running .*->80/tcp$`, 's'));
  for (const [verb, status] of [
    ['stop', 'stopped'],
    ['start', 'running'],
    ['pause', 'paused'],
    ['resume', 'running'],
  ] as const) {
    assert.equal(await succeed([verb, 'web']), id);
    assert.equal((await world.call('GET', `/vms/${id}`)).body.status, status);
    assert.equal(await succeed(['ps', '-q']), status === 'stopped' ? '' : id);
    assert.equal(await succeed(['ps', '-aq']), id);
  }
  const twice = await rlp(['resume', 'web']);
  assert.deepEqual([twice.code, twice.stdout], [1, '']);
  assert.match(twice.stderr, /^rlp: sandbox "\S+" cannot be resumed: it is running, and must be paused\n$/);
  const child = await succeed(['fork', 'web', '--name', 'copy']);
  assert.equal((await world.call('GET', `/vms/${child}`)).body.forked_from, id);
  assert.equal(await succeed(['rm', '--wait', 'copy', id]), `${child}\n${id}`);
  assert.equal(await succeed(['ps', '-q']), '');
  assert.equal((await rlp(['stop', 'web'])).code, 4);
});

test('prints the error of the service when it refuses a request', async () => {
  const { code, stderr } = await rlp(['run', 'busybox', '--secret', 'UNKNOWN', '--no-wait']);
  assert.equal(code, 1);
  assert.match(stderr, /^rlp: secrets: the project has no secret "UNKNOWN"/);
  const id = await succeed(['run', 'busybox', '--name', 'brief']);
  const refused = await rlp(['stop', id]);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /persistent/);
  await succeed(['rm', '--wait', 'brief']);
});

test('a sandbox that fails: exit code 1, and the reason of the runner', async (t) => {
  const { script } = runner.options;
  t.after(() => (runner.options.script = script));
  runner.options.script = (assignment) => {
    runner.observe(assignment, { status: 'failed', error: 'the disk is full' });
  };
  const { code, stdout, stderr } = await rlp(['run', 'busybox']);
  assert.deepEqual([code, stdout], [1, '']);
  assert.match(stderr, /^rlp: sandbox \S+ has failed: the disk is full\n$/);
});

test('a log is printed, and followed until the sandbox has ended', async () => {
  const id = await succeed(['run', 'busybox', '--name', 'chatty']);
  const path = `/vms/${parseSandboxId(id)?.uuid}/logs/`;
  runner.logs.set(`${path}console`, (_request, response) => response.end('booted\n'));
  assert.equal(await succeed(['logs', '--console', 'chatty']), 'booted');
  assert.equal((await rlp(['logs', 'chatty'])).code, 4);
  const reads: string[] = [];
  const entrypoint =
    (text: string) =>
    (request: { url?: string | undefined }, response: { end: (text: string) => unknown }) => {
      reads.push(request.url ?? '');
      response.end(text);
    };
  runner.logs.set(`${path}entrypoint`, entrypoint('one\ntwo\n'));
  runner.logs.set(`${path}entrypoint?follow=1`, (_request, response) => {
    response.write('one\n');
    setTimeout(() => response.end('two\n'), 50);
    void world.call('DELETE', `/vms/${id}`);
  });
  assert.equal(await succeed(['logs', '-f', 'chatty']), 'one\ntwo');
});

test('snapshots are taken, listed, restored from and deleted', async () => {
  await succeed(['run', 'busybox', '--name', 'source']);
  const id = await succeed(['snapshot', 'create', 'source', 'base']);
  assert.match(await succeed(['snapshot', 'ls']), new RegExp(`\\nbase +disk +ready .*${id}`));
  const second = await succeed(['run', '--from-snapshot', 'base', '--name', 'second']);
  assert.match(await succeed(['ps']), /second/);
  assert.equal(await succeed(['snapshot', 'rm', 'base']), id);
  assert.equal(await succeed(['snapshot', 'ls', '-q']), '');
  await succeed(['rm', '--wait', 'source', second]);
});

test('an image is built, and a failed build has its reason', async () => {
  const id = await succeed(['images', 'create', 'app', 'registry.example.com/app:1']);
  const [image] = JSON.parse(await succeed(['images', 'ls', '--json'])) as { id: string; status: string }[];
  assert.deepEqual([image?.id, image?.status], [id, 'ready']);
  runner.options.build = (job) => runner.built(job, { error: 'no such manifest' });
  const failed = await rlp(['images', 'create', 'app', 'registry.example.com/app:2']);
  assert.deepEqual([failed.code, failed.stderr], [1, 'rlp: the build failed: no such manifest\n']);
});

test('secrets and registry credentials are set, listed without their values and deleted', async () => {
  assert.equal(await succeed(['secret', 'set', 'TOKEN', '-d', 'api.example.com'], 's3cret\n'), 'TOKEN');
  const secrets = await succeed(['secret', 'ls']);
  assert.match(secrets, /\nTOKEN +api\.example\.com +\d+ s/);
  assert.doesNotMatch(secrets, /s3cret/);
  await succeed(['run', 'busybox', '--secret', 'TOKEN', '--name', 'holder']);
  assert.equal(await succeed(['secret', 'rm', 'TOKEN', 'NEVER']), 'TOKEN\nNEVER');
  assert.equal(
    await succeed(
      ['registry', 'set', 'registry.example.com:5000', '-u', 'ci', '--kind', 'basic'],
      'hunter2\n',
    ),
    'registry.example.com:5000',
  );
  assert.match(await succeed(['registry', 'ls']), /registry\.example\.com:5000 +basic +ci +\d+ s/);
  const url = await rlp(['registry', 'set', 'https://ghcr.io', '-u', 'a'], 'x');
  assert.equal(url.code, 1);
  assert.match(url.stderr, /registry host "https:\/\/ghcr\.io" has a scheme/);
  assert.equal(await succeed(['registry', 'rm', 'registry.example.com:5000']), 'registry.example.com:5000');
  await succeed(['rm', '--wait', 'holder']);
});

test('the operator lists, drains and undrains hosts, evicts spot sandboxes and grants credits', async () => {
  const cheap = await succeed(['run', 'busybox', '--spot', '--name', 'cheap']);
  const dear = await succeed(['run', 'busybox', '--name', 'dear']);
  assert.match(await succeed(['host', 'ls']), new RegExp(`\\n${runner.id} +- +here +online .*2 running`));
  const kept = await rlp(['host', 'evict', 'dear']);
  assert.deepEqual([kept.code, kept.stdout], [1, '']);
  assert.match(kept.stderr, /spot/);
  assert.equal(await succeed(['host', 'evict', 'cheap']), cheap);
  assert.match(await succeed(['host', 'drain', runner.id.slice(0, 8)]), new RegExp(`${dear} +stays running`));
  assert.match(await succeed(['host', 'ls']), /online, draining/);
  assert.equal(await succeed(['host', 'undrain', runner.id]), runner.id);
  const org = world.orgId;
  const before = Number(await succeed(['admin', 'grant', org, '100', '--once', 'invoice-1']));
  assert.equal(Number(await succeed(['admin', 'grant', org, '100', '--once', 'invoice-1'])), before);
  const unknown = await rlp(['admin', 'grant', '11111111-1111-4111-8111-111111111111', '1']);
  assert.equal(unknown.code, 4);
});
