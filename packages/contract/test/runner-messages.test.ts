import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import * as fc from 'fast-check';
import { FramingError, readControlMessage, readRunnerMessage, type Reading } from '../src/runner/index.ts';

const FACTS = {
  arch: 'amd64',
  cores: 8,
  mem_mib: 32_768,
  disk_mib: 100_000,
  accelerator: 'tcg',
  cpu_model: 'max',
  vmm: 'scripted 1',
  gpus: 0,
};
const HELLO = {
  type: 'hello',
  protocol: 1,
  runner_id: randomUUID(),
  region: 'here',
  data_url: 'http://127.0.0.1:1',
  facts: FACTS,
  capabilities: [],
  kinds: ['sandbox'],
};
const report = (more: object = {}): object => ({
  kind: 'sandbox',
  id: randomUUID(),
  generation: 1,
  status: 'running',
  detail: {},
  ...more,
});
const fromRunner = (value: object): ReturnType<typeof readRunnerMessage> =>
  readRunnerMessage(JSON.stringify(value));
function readable<M>(reading: Reading<M>): Extract<Reading<M>, { outcome: 'message' }> {
  assert.ok(reading.outcome === 'message', JSON.stringify(reading));
  return reading;
}

describe('reading messages of the runner link', () => {
  it('ignores fields that it does not know, at every level', () => {
    const item = report({ shard: 3, detail: { vm_ip: '172.16.0.2', temperature: 40 } });
    const { message, unsupported } = readable(
      fromRunner({ type: 'report', seq: 1, items: [item], priority: 'high' }),
    );
    assert.deepEqual(unsupported, []);
    assert.deepEqual(message.type === 'report' && message.items, [item]);
    readable(fromRunner({ ...HELLO, zone: 'b', facts: { ...FACTS, npus: 2 } }));
  });

  it('gives back a message type that it does not know as such', () => {
    assert.deepEqual(fromRunner({ type: 'gossip', seq: 1 }), { outcome: 'unknown-type', type: 'gossip' });
    assert.deepEqual(fromRunner({ type: 'constructor' }), { outcome: 'unknown-type', type: 'constructor' });
  });

  it('takes out items of a kind, or with a status, that it does not know, and keeps the others', () => {
    const good = report();
    const tunnel = report({ kind: 'tunnel', status: 'attached' });
    const status = report({ status: 'hibernated' });
    const { message, unsupported, dropped } = readable(
      fromRunner({ type: 'report', seq: 7, items: [tunnel, good, status, { kind: 'sandbox' }, null] }),
    );
    assert.deepEqual(message.type === 'report' && message.items, [good]);
    assert.deepEqual(
      unsupported.map(({ kind, error }) => [kind, error.split(' ')[0]]),
      [
        ['tunnel', 'the'],
        ['sandbox', '/status'],
      ],
    );
    assert.equal(dropped, 2);
  });

  it('knows only the kinds that it is told to know', () => {
    const reading = readRunnerMessage(JSON.stringify({ type: 'report', seq: 1, items: [report()] }), [
      'snapshot',
    ]);
    assert.equal(readable(reading).unsupported[0]?.error, 'the kind sandbox is not known');
  });

  it('takes out single readings of a usage message', () => {
    const good = { vm_id: randomUUID(), incarnation: 'a', cpu_usec: 1, age_usec: 2 };
    const { message, dropped } = readable(
      fromRunner({ type: 'usage', readings: [good, { ...good, cpu_usec: -1 }] }),
    );
    assert.deepEqual([message.type === 'usage' && message.readings, dropped], [[good], 1]);
  });

  it('says where an unreadable message is wrong, and quotes nothing of it', () => {
    const secret = 'hunter2';
    const reading = readControlMessage(
      JSON.stringify({
        type: 'sync',
        items: [
          {
            kind: 'sandbox',
            id: randomUUID(),
            generation: 1,
            desired: 'running',
            spec: { name: 'a', env: { PASSWORD: [secret] } },
          },
        ],
      }),
    );
    const { unsupported } = readable(reading);
    assert.match(unsupported[0]?.error ?? '', /^\/spec/);
    assert.doesNotMatch(JSON.stringify(unsupported), new RegExp(secret));
    assert.deepEqual(fromRunner({ type: 'heartbeat', ready: secret }), {
      outcome: 'unreadable',
      type: 'heartbeat',
      error: '/ready must be boolean',
    });
  });

  it('reads a build of a Dockerfile with its context and credentials, and one of a stored image', () => {
    const digest = `sha256:${'a'.repeat(64)}`;
    const build = (root: object): object => ({
      kind: 'build',
      id: randomUUID(),
      generation: 1,
      desired: 'done',
      spec: { image_id: randomUUID(), root, docker: false },
    });
    const dockerfile = {
      type: 'dockerfile',
      project_id: randomUUID(),
      dockerfile: { path: 'Dockerfile' },
      context: { digest, bytes: 10 },
      docker: false,
      credentials: [{ host: 'localhost:5000', kind: 'basic', username: 'user', password: 'hunter2' }],
    };
    const items = [build(dockerfile), build({ type: 'stored', digest })];
    const wrong = build({ type: 'stored', digest: 'sha256:../..' });
    const reading = readControlMessage(JSON.stringify({ type: 'desired', items: [...items, wrong] }));
    const { message, unsupported } = readable(reading);
    assert.deepEqual(message.type === 'desired' && message.items, items);
    assert.equal(unsupported.length, 1);
  });

  it('takes heartbeats of runners that do not say what they hold, and of those that do', () => {
    readable(fromRunner({ type: 'heartbeat', ready: true }));
    const held = { mem_mib: 300, reclaimable_mib: 200 };
    const { message } = readable(fromRunner({ type: 'heartbeat', ready: true, held_memory: held }));
    assert.deepEqual(message.type === 'heartbeat' && message.held_memory, held);
  });

  it('refuses a hello without a protocol version', () => {
    const { protocol: _, ...old } = HELLO;
    assert.equal(fromRunner(old).outcome, 'unreadable');
  });

  it('never throws anything but a framing error, whatever the JSON', () => {
    const anything = fc.oneof(
      fc.json(),
      fc.json().map((text) => `{"type":"report","seq":1,"items":[${text}]}`),
      fc.json().map((text) => `{"type":"usage","readings":${text}}`),
      fc.string(),
    );
    fc.assert(
      fc.property(anything, (text) => {
        for (const read of [readRunnerMessage, readControlMessage]) {
          try {
            read(text);
          } catch (error) {
            assert.ok(error instanceof FramingError);
          }
        }
      }),
    );
  });
});
