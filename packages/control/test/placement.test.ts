import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import * as fc from 'fast-check';
import { choose, shortfall, allocatable, type Host, type Need } from '../src/scheduler/placement.ts';
import { FACTS } from '@releap/testing/world';

const overcommit = { cpu: 2, mem: 1, disk: 1 };
const host = (id: string, extra: Partial<Host> = {}, facts: Partial<Host['facts']> = {}): Host => ({
  id,
  region: 'here',
  ready: true,
  draining: false,
  used: { cpu: 0, mem_mib: 0, disk_mib: 0, gpus: 0 },
  ...extra,
  facts: { ...FACTS, cores: 4, mem_mib: 4096, disk_mib: 10_000, ...facts },
});
const need = (extra: Partial<Need> = {}): Need => ({
  region: 'here',
  arch: 'amd64',
  requiredRunnerId: null,
  cpu: 1,
  mem_mib: 1024,
  disk_mib: 512,
  gpus: 0,
  ...extra,
});
const chosen = (choice: ReturnType<typeof choose>): string =>
  'host' in choice ? choice.host.id : `none: ${choice.reason}`;
const reason = (choice: ReturnType<typeof choose>): string =>
  'reason' in choice ? `${choice.unsatisfiable ? 'never: ' : 'later: '}${choice.reason}` : 'placed';

describe('placement', () => {
  it('takes the host with the most room', () => {
    const busy = host('busy', { used: { cpu: 1, mem_mib: 2048, disk_mib: 0, gpus: 0 } });
    assert.equal(chosen(choose(need(), [busy, host('idle')], overcommit)), 'idle');
  });

  it('keeps to the region, the architecture, and to hosts that are ready', () => {
    const hosts = [
      host('there', { region: 'there' }),
      host('away', { ready: false }),
      host('arm', {}, { arch: 'arm64' }),
      host('good'),
    ];
    assert.equal(chosen(choose(need(), hosts, overcommit)), 'good');
    assert.equal(chosen(choose(need({ arch: 'arm64' }), hosts, overcommit)), 'arm');
  });

  it('keeps to the one host that has what it begins with, and says what is the matter with that', () => {
    const one = { used: { cpu: 8, mem_mib: 0, disk_mib: 0, gpus: 0 } };
    assert.equal(chosen(choose(need({ requiredRunnerId: 'b' }), [host('a'), host('b')], overcommit)), 'b');
    for (const [extra, why] of [
      [one, /^later: no host .* has room for/],
      [{ ready: false }, /^later: the host b, which has the snapshot .* is not connected and ready$/],
      [{ draining: true }, /^later: the host b, which has the snapshot .* is being drained$/],
    ] as const)
      assert.match(
        reason(choose(need({ requiredRunnerId: 'b' }), [host('a'), host('b', extra)], overcommit)),
        why,
      );
  });

  it('gives nothing to a host that is being drained', () => {
    const draining = host('a', { draining: true });
    assert.equal(chosen(choose(need(), [draining, host('b')], overcommit)), 'b');
    assert.match(
      reason(choose(need(), [draining], overcommit)),
      /^later: no host .* all that are ready are being drained$/,
    );
  });

  it('promises a machine no more often than the overcommitment says', () => {
    const used = { cpu: 7.5, mem_mib: 0, disk_mib: 0, gpus: 0 };
    assert.equal(chosen(choose(need({ cpu: 0.5 }), [host('a', { used })], overcommit)), 'a');
    assert.match(
      reason(choose(need({ cpu: 0.625 }), [host('a', { used })], overcommit)),
      /^later: no host .* the most that is free is 0.5 cores/,
    );
  });

  it('says at once what no host will ever be able to take', () => {
    assert.match(
      reason(choose(need({ cpu: 5 }), [host('a')], overcommit)),
      /^never: .* large enough for 5 cores.*the largest have 4 cores/,
    );
    assert.match(
      reason(choose(need({ gpus: 1 }), [host('a')], overcommit)),
      /^never: .* has 1 GPU \(the most that any has is 0\)/,
    );
    assert.match(
      reason(choose(need({ arch: 'arm64' }), [host('a')], overcommit)),
      /^never: .* architecture arm64 \(there is: amd64\)/,
    );
  });

  it('still gives a host that has lost a GPU what wants none', () => {
    const used = { cpu: 0, mem_mib: 0, disk_mib: 0, gpus: 1 };
    assert.equal(chosen(choose(need(), [host('a', { used })], overcommit)), 'a');
  });

  it('says of what a sandbox takes how much of it its host has promised too much', () => {
    const full = host('a', { used: { cpu: 8.5, mem_mib: 5000, disk_mib: 99_999, gpus: 1 } });
    assert.equal(
      shortfall({ cpu: 1, mem_mib: 1024, disk_mib: 0, gpus: 0 }, full, overcommit),
      'it needs 1 cores, and 0.5 are free; it needs 1024 MiB of memory, and 120 are free',
    );
    assert.equal(
      shortfall({ cpu: 1, mem_mib: 1024, disk_mib: 0, gpus: 0 }, host('b'), overcommit),
      undefined,
    );
  });

  it('waits while nobody is connected, and for one that is away and would fit', () => {
    assert.match(
      reason(choose(need(), [], overcommit)),
      /^later: no host of region "here" is connected and ready/,
    );
    const hosts = [host('small', {}, { cores: 1 }), host('large', { ready: false }, { cores: 8 })];
    assert.match(reason(choose(need({ cpu: 6 }), hosts, overcommit)), /^later: /);
  });

  it('never promises more than there is, whatever comes in which order', () => {
    const needs = fc.array(
      fc.record({
        cpu: fc.constantFrom(0.125, 0.5, 1, 3),
        mem_mib: fc.integer({ min: 1, max: 5000 }),
        disk_mib: fc.integer({ min: 1, max: 12_000 }),
      }),
      { maxLength: 60 },
    );
    fc.assert(
      fc.property(needs, (wanted) => {
        const hosts = [host('a'), host('b', {}, { cores: 2, mem_mib: 8192 })];
        for (const one of wanted) {
          const choice = choose(need(one), hosts, overcommit);
          if (!('host' in choice)) continue;
          choice.host.used.cpu += one.cpu;
          choice.host.used.mem_mib += one.mem_mib;
          choice.host.used.disk_mib += one.disk_mib;
        }
        for (const { facts, used } of hosts) {
          const all = allocatable(facts, overcommit);
          assert.ok(used.cpu <= all.cpu && used.mem_mib <= all.mem_mib && used.disk_mib <= all.disk_mib);
        }
      }),
    );
  });
});
