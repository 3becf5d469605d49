import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { age, size, table } from '../src/output/table.ts';
import { parseCopyEnd, parseDuration, parseEnv, parseMebibytes, parsePort } from '../src/parse/values.ts';
import { printable } from '../src/terminal.ts';

test('sizes', () => {
  const sizes = { '512': 512, '512m': 512, '512MiB': 512, '2g': 2048, '1.5G': 1536, '1t': 1_048_576 };
  for (const [text, mib] of Object.entries(sizes)) assert.equal(parseMebibytes('--mem', text), mib);
  for (const text of ['', '0', '-1', '1k', 'g', '1e3', '0.1', '9'.repeat(30)])
    assert.throws(() => parseMebibytes('--mem', text), /--mem must be/);
});

test('durations', () => {
  assert.deepEqual(
    ['5', '90s', '2m', '1.5h', '250ms'].map((text) => parseDuration('-t', text)),
    [5000, 90_000, 120_000, 5_400_000, 250],
  );
  for (const text of ['', '0', 'soon', '1d', '-1'])
    assert.throws(() => parseDuration('-t', text), /-t must be/);
});

test('ports', () => {
  assert.deepEqual(parsePort('53/UDP'), { vm_port: 53, proto: 'udp' });
  for (const text of ['', '0', '65536', 'a', '1/sctp', '1:2']) assert.throws(() => parsePort(text), /--port/);
});

test('environment', () => {
  assert.deepEqual(
    parseEnv(['A=1', 'A=2', 'B=', 'HERE', 'GONE', '__proto__=x'], { HERE: 'h' }),
    JSON.parse('{"A":"2","B":"","HERE":"h","__proto__":"x"}'),
  );
  assert.throws(() => parseEnv(['=x'], {}), /--env/);
});

test('ends of a copy', () => {
  assert.deepEqual(parseCopyEnd('web:/a:b'), { type: 'sandbox', sandbox: 'web', path: '/a:b' });
  for (const path of ['/a:b', './a:b', 'a', 'dir/a:b'])
    assert.deepEqual(parseCopyEnd(path), { type: 'local', path });
  assert.deepEqual(parseCopyEnd('-'), { type: 'stdio' });
});

test('sizes are short', () => {
  assert.deepEqual(
    [undefined, 0, 4096, 4097, 2 ** 20, 2 ** 30].map((bytes) => size(bytes)),
    ['-', '0 B', '4 KiB', '5 KiB', '1 MiB', '1024 MiB'],
  );
});

test('tables line up and ages are short', () => {
  assert.equal(
    table(
      ['A', 'LONG'],
      [
        ['x', 'y'],
        ['xxx', '\u001b[1m'],
      ],
    ),
    'A    LONG\nx    y\nxxx  ?[1m',
  );
  const now = Date.parse('2026-01-10T00:00:00Z');
  const ages = [
    '2026-01-09T23:59:30Z',
    '2026-01-09T23:00:00Z',
    '2026-01-09T12:00:00Z',
    '2026-01-01T00:00:00Z',
    undefined,
    '2027-01-01T00:00:00Z',
  ];
  assert.deepEqual(
    ages.map((time) => age(time, now)),
    ['30 s', '60 min', '12 h', '9 d', '-', '0 s'],
  );
});

test('nothing printable is changed, and no control character stays', () => {
  assert.equal(printable('Büro 東京 🙂'), 'Büro 東京 🙂');
  fc.assert(fc.property(fc.string({ unit: 'binary' }), (text) => !/\p{Cc}/u.test(printable(text))));
});
