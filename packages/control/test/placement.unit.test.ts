import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DOCKER_CAPABILITY, DOCKERFILE_CAPABILITY } from '@releap/contract';
import { OBJECT_STORES_CAPABILITY } from '@releap/contract/runner';
import * as fc from 'fast-check';
import {
  allocatable,
  allocation,
  choose,
  chooseRegion,
  isOvercommitted,
  plus,
  shortfall,
  type Host,
  type Need,
} from '../src/compute/scheduler/placement.ts';
import { FACTS } from '@releap/testing/scripted-host';

const overcommit = { cpu: 2, mem: 1, disk: 1, tier: 'spot' } as const;
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
  overcommitted: false,
  ...extra,
});
const chosen = (choice: ReturnType<typeof choose>): string =>
  'host' in choice ? choice.host.id : `none: ${choice.reason}`;
const reason = (choice: ReturnType<typeof choose>): string =>
  'reason' in choice ? `${choice.unsatisfiable ? 'never: ' : 'later: '}${choice.reason}` : 'placed';

describe('placement', () => {
  it('takes the host with the most capacity', () => {
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

  it('requires the host that has its source, and says why that is not eligible', () => {
    const one = { used: { cpu: 8, mem_mib: 0, disk_mib: 0, gpus: 0 } };
    assert.equal(chosen(choose(need({ requiredRunnerId: 'b' }), [host('a'), host('b')], overcommit)), 'b');
    for (const [extra, why] of [
      [one, /^later: no host .* has the capacity for/],
      [{ ready: false }, /^later: the host b, which has its image or snapshot, is not connected and ready$/],
      [{ draining: true }, /^later: the host b, which has its image or snapshot, is being drained$/],
    ] as const)
      assert.match(
        reason(choose(need({ requiredRunnerId: 'b' }), [host('a'), host('b', extra)], overcommit)),
        why,
      );
  });

  it('keeps to hosts that build Dockerfiles where one is to be built', () => {
    const built = need({ isBuilt: true });
    const other = host('other', { capabilities: [] });
    assert.equal(
      reason(choose(built, [other], overcommit)),
      'never: no host of region "here" builds Dockerfiles (RELEAP_BUILDS is 0)',
    );
    assert.equal(chosen(choose(need(), [other], overcommit)), 'other');
    const used = { cpu: 1, mem_mib: 0, disk_mib: 0, gpus: 0 };
    const builder = host('builder', { capabilities: [DOCKERFILE_CAPABILITY], used });
    assert.equal(chosen(choose(built, [other, builder], overcommit)), 'builder');
    assert.match(reason(choose(built, [other, { ...builder, ready: false }], overcommit)), /^later: /);
    const docker = need({ isBuilt: true, isDocker: true });
    const engine = host('engine', { capabilities: [DOCKERFILE_CAPABILITY, DOCKER_CAPABILITY], used });
    assert.equal(chosen(choose(docker, [builder, engine], overcommit)), 'engine');
    // A row that an older server wrote.
    assert.equal(
      chosen(choose(built, [other, host('unknown', { capabilities: null })], overcommit)),
      'unknown',
    );
  });

  it('keeps to hosts that can mount object stores where some are to be mounted', () => {
    const mounts = need({ mountsStores: true });
    const [without, can] = [
      host('new', { capabilities: [] }),
      host('b', { capabilities: [OBJECT_STORES_CAPABILITY] }),
    ];
    assert.match(
      reason(choose(mounts, [without], overcommit)),
      /^later: no host of region "here" can mount object stores yet: set-up makes .*; try again in some minutes$/,
    );
    assert.equal(chosen(choose(need(), [without], overcommit)), 'new');
    assert.equal(chosen(choose(mounts, [without, can], overcommit)), 'b');
  });

  it('places nothing on a host that is being drained', () => {
    const draining = host('a', { draining: true });
    assert.equal(chosen(choose(need(), [draining, host('b')], overcommit)), 'b');
    assert.match(
      reason(choose(need(), [draining], overcommit)),
      /^later: no host .* all ready ones are being drained$/,
    );
  });

  it('allocates a machine no more often than the overcommitment says, and guarantees once', () => {
    // 7.5 cores of overcommitted sandboxes, each of which counts half.
    const used = allocation(need({ cpu: 7.5, mem_mib: 0, disk_mib: 0, overcommitted: true }), overcommit);
    const overcommitted = true;
    assert.equal(chosen(choose(need({ cpu: 0.5, overcommitted }), [host('a', { used })], overcommit)), 'a');
    assert.match(
      reason(choose(need({ cpu: 0.625, overcommitted }), [host('a', { used })], overcommit)),
      /^later: no host .* the most that is free is 0.5 cores/,
    );
    assert.equal(chosen(choose(need({ cpu: 0.25 }), [host('a', { used })], overcommit)), 'a');
    assert.match(
      reason(choose(need({ cpu: 0.375 }), [host('a', { used })], overcommit)),
      /^later: no host .* the most that is free is 0.25 cores/,
    );
    const guaranteed = { used: { cpu: 3.5, mem_mib: 0, disk_mib: 0, gpus: 0 } };
    assert.equal(chosen(choose(need({ cpu: 0.5 }), [host('a', guaranteed)], overcommit)), 'a');
    assert.match(
      reason(choose(need({ cpu: 0.625 }), [host('a', guaranteed)], overcommit)),
      /^later: no host .* the most that is free is 0.5 cores/,
    );
  });

  it('says at once what fits no host, even an empty one', () => {
    assert.match(
      reason(choose(need({ cpu: 5 }), [host('a')], overcommit)),
      /^never: .* large enough for 5 cores.*the largest have 4 cores/,
    );
    assert.match(
      reason(choose(need({ gpus: 1 }), [host('a')], overcommit)),
      /^never: .* has 1 GPU \(the most of any host is 0\)/,
    );
    assert.match(
      reason(choose(need({ arch: 'arm64' }), [host('a')], overcommit)),
      /^never: .* architecture arm64 \(available: amd64\)/,
    );
  });

  it('still places sandboxes without GPUs on a host that has lost a GPU', () => {
    const used = { cpu: 0, mem_mib: 0, disk_mib: 0, gpus: 1 };
    assert.equal(chosen(choose(need(), [host('a', { used })], overcommit)), 'a');
  });

  it('says of what a sandbox takes how much of it its host has over-allocated', () => {
    const full = host('a', { used: { cpu: 4.5, mem_mib: 5000, disk_mib: 99_999, gpus: 1 } });
    assert.equal(
      shortfall(need({ disk_mib: 0 }), full, overcommit),
      'it needs 1 core (0.5 free); it needs 1024 MiB of memory (120 free)',
    );
    assert.equal(shortfall(need({ disk_mib: 0 }), host('b'), overcommit), undefined);
  });

  it('waits while no host is connected, and for a disconnected one that would fit', () => {
    assert.match(
      reason(choose(need(), [], overcommit)),
      /^later: no host of region "here" is connected and ready/,
    );
    const hosts = [host('small', {}, { cores: 1 }), host('large', { ready: false }, { cores: 8 })];
    assert.match(reason(choose(need({ cpu: 6 }), hosts, overcommit)), /^later: /);
  });

  it('overcommits spot only, burstable too, or all', () => {
    const all = (['burstable', 'dedicated'] as const).flatMap((mode) =>
      [false, true].map((spot) => ({ mode, spot })),
    );
    assert.deepEqual(
      all.filter((one) => isOvercommitted(one, { tier: 'spot' })),
      [{ mode: 'burstable', spot: true }],
    );
    assert.deepEqual(
      all.filter((one) => isOvercommitted(one, { tier: 'burstable' })),
      [
        { mode: 'burstable', spot: false },
        { mode: 'burstable', spot: true },
      ],
    );
    assert.deepEqual(
      all.filter((one) => isOvercommitted(one, { tier: 'all' })),
      all,
    );
  });

  it('waits for the only host that is large enough while it is absent or drained, and names it', () => {
    const small = host('small', {}, { cores: 1 });
    for (const extra of [{ ready: false }, { draining: true }])
      assert.match(
        reason(choose(need({ cpu: 6 }), [small, host('large', extra, { cores: 8 })], overcommit)),
        /^later: the only hosts .* large enough for 6 cores.* are not connected or are being drained: large$/,
      );
    assert.match(
      reason(
        choose(
          need({ arch: 'arm64' }),
          [small, host('arm', { ready: false }, { arch: 'arm64' })],
          overcommit,
        ),
      ),
      /^later: /,
    );
  });

  it('chooses the region by the need: where it fits now, else where it will, else where it could', () => {
    const at = (region: string, extra: Partial<Host> = {}, facts: Partial<Host['facts']> = {}): Host =>
      host(`${region}-1`, { region, ...extra }, facts);
    const regionOf = (hosts: Host[], extra: Partial<Need>): string | undefined =>
      chooseRegion(need(extra), ['east', 'west'], hosts, overcommit);
    const busy = { used: { cpu: 3, mem_mib: 3000, disk_mib: 0, gpus: 0 } };
    const gpus = [at('east'), at('west', busy, { gpus: 1 })];
    assert.equal(regionOf(gpus, { gpus: 1 }), 'west');
    assert.equal(regionOf(gpus, {}), 'east');
    assert.equal(regionOf([at('east'), at('west', {}, { arch: 'arm64' })], { arch: 'arm64' }), 'west');
    assert.equal(regionOf([at('east', busy), at('west', {}, { cores: 2 })], { cpu: 2 }), 'west');
    // East is emptier by share, and too small.
    assert.equal(regionOf([at('east', {}, { cores: 1 }), at('west', busy)], { cpu: 2 }), 'west');
    assert.equal(regionOf([at('east', {}, { cores: 1 }), at('west', { ready: false })], { cpu: 2 }), 'west');
    assert.equal(regionOf([], {}), 'east');
  });

  it('never allocates more than there is, in any order of arrival', () => {
    const needs = fc.array(
      fc.record({
        cpu: fc.constantFrom(0.125, 0.5, 1, 3),
        mem_mib: fc.integer({ min: 1, max: 5000 }),
        disk_mib: fc.integer({ min: 1, max: 12_000 }),
        overcommitted: fc.boolean(),
      }),
      { maxLength: 60 },
    );
    fc.assert(
      fc.property(needs, (wanted) => {
        const hosts = [host('a'), host('b', {}, { cores: 2, mem_mib: 8192 })];
        const guaranteed = new Map(
          hosts.map((one) => [one.id, { cpu: 0, mem_mib: 0, disk_mib: 0, gpus: 0 }]),
        );
        for (const one of wanted) {
          const choice = choose(need(one), hosts, overcommit);
          if (!('host' in choice)) continue;
          const { host } = choice;
          host.used = plus(host.used, allocation(need(one), overcommit));
          if (!one.overcommitted)
            guaranteed.set(host.id, plus(guaranteed.get(host.id) ?? host.used, { ...one, gpus: 0 }));
        }
        for (const { id, facts, used } of hosts) {
          const all = allocatable(facts);
          for (const sum of [used, guaranteed.get(id) ?? used])
            assert.ok(sum.cpu <= all.cpu && sum.mem_mib <= all.mem_mib && sum.disk_mib <= all.disk_mib);
        }
      }),
    );
  });
});
