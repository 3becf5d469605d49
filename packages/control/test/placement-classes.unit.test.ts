/** Classes of hardware in placements. Names quote the specification's rows of cpu_type, network_class and disk_class. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FACTS } from '@releap/testing/scripted-host';
import { choose, chooseRegion, type Host, type Need } from '../src/compute/scheduler/placement.ts';

const overcommit = { cpu: 2, mem: 1, disk: 1, tier: 'spot' } as const;
const tiers = (
  kind: 'cpu_type' | 'network_class' | 'disk_class',
  tier: number | null,
): NonNullable<Host['classes']> =>
  tier === null ? {} : { [kind]: { slug: `${kind}-${tier}`, tier, source: 'host' } };
const host = (id: string, classes: Host['classes'], extra: Partial<Host> = {}): Host => ({
  id,
  region: 'here',
  ready: true,
  draining: false,
  used: { cpu: 0, mem_mib: 0, disk_mib: 0, gpus: 0 },
  facts: { ...FACTS, cores: 4, mem_mib: 4096, disk_mib: 10_000 },
  ...(classes === undefined ? {} : { classes }),
  ...extra,
});
const cpu = (id: string, tier: number | null, extra: Partial<Host> = {}): Host =>
  host(id, tiers('cpu_type', tier), extra);
const need = (classes: Need['classes'], extra: Partial<Need> = {}): Need => ({
  region: 'here',
  arch: 'amd64',
  requiredRunnerId: null,
  cpu: 1,
  mem_mib: 1024,
  disk_mib: 512,
  gpus: 0,
  overcommitted: false,
  ...(classes === undefined ? {} : { classes }),
  ...extra,
});
const result = (asks: Need, hosts: Host[]): string => {
  const choice = choose(asks, hosts, overcommit);
  return 'host' in choice ? choice.host.id : `${choice.unsatisfiable ? 'never' : 'later'}: ${choice.reason}`;
};
const asksCpu = (tier: number, extra: Partial<Need> = {}): Need =>
  need({ cpu_type: { slug: `cpu_type-${tier}`, tier } }, extra);
const full = { used: { cpu: 4, mem_mib: 4096, disk_mib: 0, gpus: 0 } };
const busy = { used: { cpu: 2, mem_mib: 2048, disk_mib: 0, gpus: 0 } };

describe('"Placement prefers an exact tier and falls back only upward within the same architecture, never lower"', () => {
  it('takes an exact tier, although a higher one has more capacity', () => {
    assert.equal(result(asksCpu(2), [cpu('high', 3), cpu('exact', 2, busy), cpu('low', 1)]), 'exact');
  });

  it('takes the host with the most capacity of an exact tier', () => {
    assert.equal(result(asksCpu(2), [cpu('busy', 2, busy), cpu('idle', 2)]), 'idle');
  });

  it('takes the nearest higher tier where no exact one has the capacity', () => {
    const hosts = [cpu('low', 1), cpu('exact', 2, full), cpu('highest', 9), cpu('higher', 3, busy)];
    assert.equal(result(asksCpu(2), hosts), 'higher');
  });

  it('waits for a host of the tier rather than take a lower one, and says so', () => {
    assert.match(
      result(asksCpu(2), [cpu('low', 1), cpu('exact', 2, full), cpu('none', null)]),
      /^later: no host of region "here" has the capacity for/,
    );
  });

  it('refuses for ever where no host has the tier or a higher one, and lists what there is', () => {
    assert.equal(
      result(asksCpu(3), [cpu('b', 2), cpu('a', 1), cpu('none', null)]),
      'never: no host of region "here" has cpu_type "cpu_type-3" (tier 3) or a higher one ' +
        '(available: cpu_type "cpu_type-1" (tier 1), "cpu_type-2" (tier 2))',
    );
    assert.match(result(asksCpu(3), [cpu('none', null)]), /^never: .*\(available: cpu_type none\)$/);
  });

  it('never crosses the architecture, whatever the tier there', () => {
    const arm = cpu('arm', 9, { facts: { ...FACTS, arch: 'arm64' } });
    assert.match(
      result(asksCpu(2), [arm, cpu('low', 1)]),
      /^never: .*"cpu_type-2" \(tier 2\) or a higher one/,
    );
    assert.equal(result(asksCpu(2, { arch: 'arm64' }), [arm, cpu('exact', 2)]), 'arm');
  });

  it('waits for a host of the tier that is away or drained, as for other needs', () => {
    for (const extra of [{ ready: false }, { draining: true }])
      assert.match(result(asksCpu(2), [cpu('low', 1), cpu('exact', 2, extra)]), /^later: /);
  });

  it('is asked of no sandbox without classes', () => {
    assert.equal(result(need(undefined), [cpu('low', 1, busy), cpu('none', null)]), 'none');
  });
});

describe('network_class and disk_class: "Same or higher, never lower"', () => {
  for (const kind of ['network_class', 'disk_class'] as const)
    it(kind, () => {
      const asks = need({ [kind]: { slug: `${kind}-2`, tier: 2 } });
      const one = (id: string, tier: number | null, extra = {}): Host => host(id, tiers(kind, tier), extra);
      assert.equal(result(asks, [one('low', 1), one('none', null), one('same', 2, busy)]), 'same');
      assert.equal(result(asks, [one('low', 1), one('higher', 5)]), 'higher');
      assert.match(result(asks, [one('low', 1), one('none', null)]), /^never: .* or a higher one/);
    });

  it('one host has to have all that is asked for', () => {
    const asks = need({ network_class: { slug: 'n', tier: 1 }, disk_class: { slug: 'd', tier: 1 } });
    const [net, disk] = [tiers('network_class', 1), tiers('disk_class', 1)];
    assert.match(
      result(asks, [host('n', net), host('d', disk)]),
      /^never: .*has network_class "n" \(tier 1\) or a higher one and disk_class "d" \(tier 1\) or a higher one/,
    );
    assert.equal(result(asks, [host('n', net), host('both', { ...net, ...disk })]), 'both');
  });
});

it('a class that was deleted is on no host', () => {
  const asks = need({ disk_class: { slug: 'gone', tier: null } });
  assert.match(result(asks, [host('d', tiers('disk_class', 9))]), /^never: .*"gone", which was deleted/);
});

describe('a global region', () => {
  const there = (id: string, region: string, tier: number, extra: Partial<Host> = {}): Host =>
    cpu(id, tier, { region, ...extra });
  const region = (tier: number, hosts: Host[]): string | undefined =>
    chooseRegion(asksCpu(tier), ['a', 'b'], hosts, overcommit);

  it('is resolved to a member with a host of the class', () => {
    assert.equal(region(2, [there('a', 'a', 1), there('b', 'b', 2, busy)]), 'b');
    assert.equal(region(2, [there('a', 'a', 2, full), there('b', 'b', 1)]), 'a');
  });

  it('prefers the member with the exact tier', () => {
    assert.equal(region(2, [there('a', 'a', 3), there('b', 'b', 2, busy)]), 'b');
    assert.equal(region(2, [there('a', 'a', 3), there('b', 'b', 2, full)]), 'a');
  });
});
