/** The rules of a deploy, one by one, and of all of its numbers at once. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import {
  ApiError,
  FunctionDeployRequest,
  resolveFunctionDeploy,
  validate,
  type ResolvedFunction,
} from '../src/index.ts';

function deploy(body: Record<string, unknown>): ResolvedFunction {
  return resolveFunctionDeploy(
    validate(FunctionDeployRequest, 'body', { name: 'f', image: 'busybox', ...body }),
  );
}

function refused(body: Record<string, unknown>, ...words: string[]): void {
  assert.throws(
    () => deploy(body),
    (error: unknown) => {
      assert.ok(error instanceof ApiError && error.status === 400, String(error));
      for (const word of words) assert.ok(error.message.includes(word), `"${error.message}" lacks "${word}"`);
      return true;
    },
    JSON.stringify(body).slice(0, 200),
  );
}

const DEFAULTS = {
  handler: [],
  port: 8080,
  vcpus: 1,
  mem_mib: 512,
  scratch_mib: 512,
  timeout_s: 300,
  scaledown_window_s: 60,
  max_concurrency: 1,
  max_instances: null,
  env: {},
  snapshot_kind: 'pre_entrypoint',
  activate: 'now',
};

describe('the deploy of a function', () => {
  test('has the defaults of the contract, also for fields that are null', () => {
    const nulls = Object.fromEntries(Object.keys(DEFAULTS).map((field) => [field, null]));
    for (const body of [{}, nulls])
      assert.deepEqual(deploy(body), { name: 'f', image: { type: 'named', name: 'busybox' }, ...DEFAULTS });
  });

  test('needs a name of a-z 0-9 and inner hyphens, of 1 to 64 characters', () => {
    for (const name of ['a', '0', 'a-b', 'a--b', '9-9', 'x'.repeat(64)])
      assert.equal(deploy({ name }).name, name);
    for (const name of ['', 'A', 'a_b', '-a', 'a-', 'a b', 'ä', 'a\n', 'a.b', 'a/b', 'x'.repeat(65)])
      refused({ name }, 'name must be 1 to 64 characters of a-z 0-9 -', 'but was');
    refused({ name: undefined }, 'name is required');
    refused({ name: 7 }, 'name must be', '7');
  });

  test('takes a named image or a registry reference, as an object or in short', () => {
    for (const image of ['node:20', { type: 'registry', ref: 'node:20' }])
      assert.deepEqual(deploy({ image }).image, { type: 'registry', ref: 'node:20' });
    assert.deepEqual(deploy({ image: { type: 'named', name: 'app' } }).image, { type: 'named', name: 'app' });
    refused({ image: undefined }, 'image is required', '{type: "named", name}');
    refused({ image: { type: 'snapshot', name: 's' } }, 'image must be', 'snapshot');
    refused({ image: { type: 'dockerfile', dockerfile: 'FROM a' } }, 'image must be', 'dockerfile');
    refused({ image: { type: 'registry' } }, 'image.ref is required');
    refused({ image: { type: 'registry', ref: 'a/../b' } }, '..');
    refused({ image: 'two words' }, 'image must be', 'two words');
  });

  test('takes a handler of bounded arguments, and no empty program', () => {
    assert.deepEqual(deploy({ handler: ['python3', '-c', ''] }).handler, ['python3', '-c', '']);
    refused({ handler: 'python3 app.py' }, 'handler must be an array', 'python3 app.py');
    refused({ handler: ['a', 1] }, 'handler[1] must be a string');
    refused({ handler: [''] }, 'handler[0] must be a program');
    refused({ handler: ['a\0b'] }, 'NUL');
    refused({ handler: Array.from({ length: 257 }, () => 'a') }, 'at most 256');
    refused({ handler: ['ä'.repeat(20_000), 'ä'.repeat(20_000)] }, '80000 bytes', 'at most 65536');
  });

  test('takes an environment of valid names, never shows a value, and keeps RLP_FN_PORT for itself', () => {
    assert.deepEqual(deploy({ env: { _a1: '', B: 'ü' } }).env, { _a1: '', B: 'ü' });
    for (const name of ['1A', 'A-B', 'A B', '', 'ä'])
      refused({ env: { [name]: 'x' } }, 'env name', 'is not valid');
    refused({ env: { RLP_FN_PORT: '1' } }, 'env.RLP_FN_PORT cannot be set', 'port');
    refused({ env: { A: 'x'.repeat(65_537) } }, 'env.A has 65537 bytes');
    refused({ env: { A: 'x'.repeat(65_536), B: 'x'.repeat(65_536) } }, '131074 bytes', 'at most 131072');
    assert.throws(
      () => deploy({ env: { A: 5 } }),
      ({ message }: Error) => /env\.A must be a string/.test(message) && !message.includes('5'),
    );
  });

  test('takes one of two kinds of snapshots', () => {
    assert.equal(deploy({ snapshot_kind: 'fn_ready' }).snapshot_kind, 'fn_ready');
    refused({ snapshot_kind: 'full' }, 'snapshot_kind must be one of "pre_entrypoint", "fn_ready"', 'full');
  });

  const NUMBERS: Record<string, [least: number, most: number]> = {
    port: [1, 65_535],
    vcpus: [1, 16],
    mem_mib: [128, 65_536],
    scratch_mib: [64, 262_144],
    timeout_s: [1, 172_800],
    scaledown_window_s: [2, 2_147_483_647],
    max_concurrency: [1, 2_147_483_647],
    max_instances: [1, 2_147_483_647],
  };

  test('refuses each number just outside of its range, and names it, the value and the bound', () => {
    for (const [field, [least, most]] of Object.entries(NUMBERS)) {
      for (const value of [least, most]) assert.equal(deploy({ [field]: value })[field as 'port'], value);
      refused({ [field]: least - 1 }, field, String(least - 1), String(least));
      refused({ [field]: most + 1 }, field, String(most + 1), String(most));
      for (const value of [1.5, '1', true, [1], Number.MAX_VALUE])
        refused({ [field]: value }, `${field} must be an integer`);
    }
  });

  test('accepts a body exactly when every number is in its range, and changes none', () => {
    const number = (least: number, most: number): fc.Arbitrary<unknown> =>
      fc.oneof(
        { weight: 6, arbitrary: fc.integer({ min: least, max: most }) },
        fc.constantFrom(least, most, least - 1, most + 1, 0, -1, 0.5, '8', null),
      );
    const body = fc.record(
      Object.fromEntries(
        Object.entries(NUMBERS).map(([field, [least, most]]) => [field, number(least, most)]),
      ),
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(body, (given) => {
        const valid = Object.entries(given).every(([field, value]) => {
          const [least, most] = NUMBERS[field] ?? [0, 0];
          return (
            value === null || (Number.isInteger(value) && Number(value) >= least && Number(value) <= most)
          );
        });
        if (!valid) return refused(given);
        const set = Object.entries(given).filter(([, value]) => value !== null);
        assert.deepEqual(deploy(given), {
          name: 'f',
          image: { type: 'named', name: 'busybox' },
          ...DEFAULTS,
          ...Object.fromEntries(set),
        });
      }),
      { numRuns: propertyRuns(1_000) },
    );
  });
});
