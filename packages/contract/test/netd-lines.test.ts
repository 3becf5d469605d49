import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import {
  LineError,
  LineReader,
  NETD_REPLY_MAX_BYTES,
  NetdToRunner,
  RunnerToNetd,
} from '../src/netd/index.ts';

const seq = fc.integer({ min: 1, max: 1_000_000 });
const message = fc.oneof(
  seq.map((n): NetdToRunner => ({ type: 'done', seq: n })),
  fc.tuple(seq, fc.string({ minLength: 1, maxLength: 60, unit: 'binary' })).map(
    ([id, vm_id]): NetdToRunner => ({
      type: 'pin',
      id,
      vm_id,
      pins: [{ address: '1.2.3.4', seconds: 60 }],
    }),
  ),
  fc
    .string({ maxLength: 200, unit: 'binary' })
    .map((text): NetdToRunner => ({ type: 'log', level: 'info', message: text, facts: { text, n: 1 } })),
);

test('messages are found however the stream is cut', () => {
  fc.assert(
    fc.property(fc.array(message), fc.integer({ min: 1, max: 9 }), (messages, cut) => {
      const stream = Buffer.from(messages.map((one) => `${JSON.stringify(one)}\n`).join(''));
      const reader = new LineReader(NetdToRunner, NETD_REPLY_MAX_BYTES);
      const found: NetdToRunner[] = [];
      for (let at = 0; at < stream.length; at += cut)
        found.push(...reader.push(stream.subarray(at, at + cut)));
      assert.deepEqual(found, messages);
    }),
  );
});

test('bytes of any kind are messages or an error, and nothing else', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
      const reader = new LineReader(NetdToRunner, 100);
      try {
        for (const found of reader.push(Buffer.from(bytes))) assert.equal(typeof found.type, 'string');
      } catch (error) {
        assert.ok(error instanceof LineError);
      }
    }),
  );
});

test('a line that has no end is refused before it is there', () => {
  const reader = new LineReader(NetdToRunner, 1_000);
  assert.throws(() => {
    for (let n = 0; n < 1_000; n++) assert.deepEqual([...reader.push(Buffer.alloc(100, 'x'))], []);
  }, LineError);
});

test('what is not in the protocol is refused', () => {
  const refused = (text: string): void => {
    for (const schema of [NetdToRunner, RunnerToNetd])
      assert.throws(
        () => [...new LineReader(schema, 10_000).push(Buffer.from(`${text}\n`))],
        LineError,
        text,
      );
  };
  refused('');
  refused('null');
  refused('{"type":"unknown"}');
  refused('{"type":"done","seq":0}');
  refused('{"type":"done","seq":1.5}');
  refused('{"type":"pin","id":1,"vm_id":"a","pins":[]}');
  // It becomes a rule of the firewall.
  refused('{"type":"pin","id":1,"vm_id":"a","pins":[{"address":"1.2.3.4; flush ruleset","seconds":1}]}');
  refused('{"type":"pin","id":1,"vm_id":"a","pins":[{"address":"1.2.3.4\\n","seconds":1}]}');
  refused('{"type":"pin","id":1,"vm_id":"a","pins":[{"address":"1.2.3.4","seconds":1000000}]}');
  refused('{"type":"log","level":"fatal","message":"x","facts":{}}');
  refused('{"type":"put","seq":1,"sandbox":{"vm_id":"a","address":"::1"}}');
  refused(
    '{"type":"put","seq":1,"sandbox":{"vm_id":"a","address":"1.2.3.4","forwards":[{"proto":"sctp","vm_port":1}]}}',
  );
  refused(
    '{"type":"put","seq":1,"sandbox":{"vm_id":"a","address":"1.2.3.4","forwards":[{"proto":"tcp","vm_port":65536}]}}',
  );
});
