/** The rules of the create table for mode, processors, memory and disks. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import { ApiError, PLATFORM_LIMITS, resolveResources, type ResolvedSandbox } from '../src/index.ts';
import { create, refused } from './support/sandbox-create.ts';

describe('mode', () => {
  test('is burstable when absent', () => assert.equal(create({}).mode, 'burstable'));
  test('may be dedicated', () => assert.equal(create({ mode: 'dedicated' }).mode, 'dedicated'));
  test('is refused when it is anything else', () => {
    refused({ mode: 'turbo' }, 'mode', 'burstable', 'dedicated', 'turbo');
    refused({ mode: '' }, 'mode');
    refused({ mode: 1 }, 'mode');
  });
});

describe('cpu and vcpus', () => {
  test('a bare burstable create is guaranteed 0.125 cores and sees 2', () => {
    assert.deepEqual(pick(create({})), { cpu: 0.125, vcpus: 2 });
  });
  test('a bare dedicated create has 2 cores', () => {
    assert.deepEqual(pick(create({ mode: 'dedicated' })), { cpu: 2, vcpus: 2 });
  });
  test('cpu must be above 0', () => {
    for (const cpu of [0, -1, -0.5]) refused({ cpu }, 'cpu must be a number greater than 0', String(cpu));
    refused({ cpu: '1' }, 'cpu must be a number');
    refused({ cpu: Number.POSITIVE_INFINITY }, 'cpu must be a number');
  });
  test('burstable cpu may be a fraction and is raised to 0.125', () => {
    assert.deepEqual(pick(create({ cpu: 0.01 })), { cpu: 0.125, vcpus: 1 });
    assert.deepEqual(pick(create({ cpu: 1.5 })), { cpu: 1.5, vcpus: 2 });
  });
  test('dedicated cpu is rounded up to whole cores, at least 1', () => {
    assert.deepEqual(pick(create({ mode: 'dedicated', cpu: 0.1 })), { cpu: 1, vcpus: 1 });
    assert.deepEqual(pick(create({ mode: 'dedicated', cpu: 2.01 })), { cpu: 3, vcpus: 3 });
    assert.deepEqual(pick(create({ mode: 'dedicated', cpu: 15.5 })), { cpu: 16, vcpus: 16 });
  });
  test('dedicated cpu over 16 is refused, never clamped', () => {
    refused({ mode: 'dedicated', cpu: 16.1 }, 'at most 16');
    refused({ mode: 'dedicated', vcpus: 17 }, 'vcpus', 'at most 16');
  });
  test('vcpus count only when cpu is absent', () => {
    assert.deepEqual(pick(create({ cpu: 0.5, vcpus: 8 })), { cpu: 0.5, vcpus: 1 });
    assert.deepEqual(pick(create({ vcpus: 4 })), { cpu: 4, vcpus: 4 });
    assert.deepEqual(pick(create({ mode: 'dedicated', vcpus: 3 })), { cpu: 3, vcpus: 3 });
    assert.deepEqual(pick(create({ cpu: null, vcpus: 3 })), { cpu: 3, vcpus: 3 });
  });
  test('vcpus must be a whole number of at least 1', () => {
    for (const vcpus of [0, -1, 1.5, '2', true]) refused({ vcpus }, 'vcpus must be an integer');
  });
});

describe('mem_mib and scratch_mib', () => {
  test('have their defaults when absent', () => {
    assert.equal(create({}).mem_mib, 1024);
    assert.equal(create({}).scratch_mib, 512);
  });
  test('must be whole numbers of at least 1', () => {
    for (const field of ['mem_mib', 'scratch_mib']) {
      for (const value of [0, -1, 1.5, '512', 1e10])
        refused({ [field]: value }, `${field} must be an integer`);
    }
  });
  test('are raised to the platform minimum when given', () => {
    assert.equal(create({ mem_mib: 1 }).mem_mib, PLATFORM_LIMITS.memMibMin);
    assert.equal(create({ scratch_mib: 1 }).scratch_mib, PLATFORM_LIMITS.scratchMibMin);
  });
  test('are not raised when they are defaults', () => {
    const platform = { ...PLATFORM_LIMITS, memMibMin: 4096, scratchMibMin: 4096 };
    assert.equal(create({}, platform).mem_mib, 1024);
    assert.equal(create({}, platform).scratch_mib, 512);
  });
});

describe('burst caps', () => {
  test('refuse guarantees above them in burstable mode', () => {
    refused({ cpu: 17 }, 'cpu', '17', 'at most 16');
    refused({ vcpus: 17 }, 'vcpus', 'at most 16');
    refused({ mem_mib: PLATFORM_LIMITS.burstMemMib + 1 }, 'mem_mib', 'at most');
    refused({ scratch_mib: PLATFORM_LIMITS.burstScratchMib + 1 }, 'scratch_mib', 'at most');
  });
  test('allow exactly the cap', () => {
    assert.equal(create({ cpu: 16, mem_mib: PLATFORM_LIMITS.burstMemMib }).cpu, 16);
  });
  test('do not bind a dedicated sandbox', () => {
    const mem = PLATFORM_LIMITS.burstMemMib + 1;
    assert.equal(create({ mode: 'dedicated', mem_mib: mem }).mem_mib, mem);
  });
});

test('resources always come out inside the rules, whatever is asked for', () => {
  const request = fc.record(
    {
      mode: fc.constantFrom('burstable' as const, 'dedicated' as const),
      cpu: fc.double({ min: 0, max: 20, minExcluded: true, noNaN: true }),
      vcpus: fc.integer({ min: 1, max: 20 }),
      mem_mib: fc.integer({ min: 1, max: 200_000 }),
      scratch_mib: fc.integer({ min: 1, max: 500_000 }),
    },
    { requiredKeys: [] },
  );
  fc.assert(
    fc.property(request, (body) => {
      let got: ReturnType<typeof resolveResources>;
      try {
        got = resolveResources(body);
      } catch (error) {
        assert.ok(error instanceof ApiError && error.status === 400);
        return;
      }
      assert.ok(Number.isInteger(got.vcpus) && got.vcpus >= 1 && got.vcpus >= got.cpu);
      assert.ok(got.cpu <= 16 && got.cpu >= (got.mode === 'dedicated' ? 1 : 0.125));
      if (got.mode === 'dedicated') assert.equal(got.cpu, got.vcpus);
      if (body.cpu !== undefined) assert.ok(got.cpu >= body.cpu, 'never less than what was asked for');
      if (body.mem_mib !== undefined) assert.ok(got.mem_mib >= body.mem_mib);
      // What was resolved resolves to itself: a stored sandbox may be resolved again.
      if (body.cpu !== undefined) assert.deepEqual(resolveResources(got), got);
    }),
    { numRuns: propertyRuns(1000) },
  );
});

describe('gpu_host', () => {
  test('is 0 when absent', () => assert.equal(create({}).gpu_host, 0));
  test('must be a whole number that is not negative', () => {
    for (const gpu_host of [-1, 0.5, 'one']) refused({ gpu_host }, 'gpu_host must be an integer');
  });
  test('refuses network_class and disk_class beside it', () => {
    refused({ gpu_host: 1, network_class: 'n1' }, 'network_class', 'gpu_host');
    refused({ gpu_host: 1, disk_class: 'd1' }, 'disk_class', 'gpu_host');
  });
});

describe('docker_data_mib', () => {
  test('is none when absent or 0', () => {
    assert.equal(create({}).docker_data_mib, null);
    assert.equal(create({ docker_data_mib: 0 }).docker_data_mib, null);
  });
  test('is raised to what holds a file system', () => {
    assert.equal(create({ docker_data_mib: 1 }).docker_data_mib, PLATFORM_LIMITS.dockerDataMibMin);
    assert.equal(create({ docker_data_mib: 4096 }).docker_data_mib, 4096);
  });
  test('must be a whole number that is not negative', () => {
    for (const docker_data_mib of [-1, 0.5, '1', 2 ** 31]) refused({ docker_data_mib }, 'docker_data_mib');
  });
});

function pick(sandbox: ResolvedSandbox): { cpu: number; vcpus: number } {
  return { cpu: sandbox.cpu, vcpus: sandbox.vcpus };
}
