import { readFile } from 'node:fs/promises';
import { EXPIRY_METRIC, expirySeconds, type HostCertificate } from '@releap/certificates/hosts';
import { Counter, Gauge, type Registry } from 'prom-client';
import type { OomKills } from '../cgroup/oom-kills.ts';
import type { SpaceWatch } from '../disk/space-watch.ts';
import type { MemoryBudget } from '../memory/memory-budget.ts';
import type { Network } from '../network/network.ts';
import type { Quarantine } from '../quarantine/quarantine.ts';
import type { Reconciler } from '../reconcile/reconciler.ts';
import { labelledCounter, labelledGauge } from './labelled.ts';

export interface HostMetricsSources {
  reconciler: Pick<Reconciler, 'counts'>;
  network: Pick<Network, 'counts'>;
  memoryBudget: Pick<MemoryBudget, 'held'>;
  oomKills: Pick<OomKills, 'counts'>;
  spaces: readonly SpaceWatch[];
  quarantines: Readonly<Record<string, Quarantine>>;
  certificate: Pick<HostCertificate, 'current'>;
}

/** Only while connections are tracked. */
const CONNTRACK = '/proc/sys/net/netfilter/nf_conntrack_';
const MIB = 2 ** 20;

/** Metrics of what a host has left for sandboxes, and of what goes wrong on it. docs/observability.md lists them. */
export function hostMetrics(registry: Registry, sources: HostMetricsSources): void {
  const { reconciler, network, memoryBudget, oomKills, spaces, quarantines, certificate } = sources;
  labelledGauge(
    registry,
    'releap_host_sandboxes',
    'Sandboxes with a micro-VM on this host',
    'state',
    () => reconciler.counts,
  );
  labelledGauge(
    registry,
    'releap_network_slots',
    'Network slots of this host',
    'state',
    () => network.counts.slots,
  );
  labelledGauge(
    registry,
    'releap_network_connections',
    'Tracked connections of the whole host, and their limit',
    'value',
    tracked,
  );
  labelledCounter(
    registry,
    'releap_helper_ends_total',
    'How often a helper process has ended or hung',
    'helper',
    () => network.counts.helperEnds,
  );
  const restores = new Counter({
    name: 'releap_firewall_restores_total',
    help: "How often another program had removed the host's firewall table",
    registers: [],
    collect() {
      this.reset();
      this.inc(network.counts.firewallRestores);
    },
  });
  registry.registerMetric(restores);
  labelledGauge(
    registry,
    'releap_memory_held_bytes',
    'Memory held for sandboxes outside their limits',
    'kind',
    () => {
      const { mem_mib: held, reclaimable_mib: reclaimable } = memoryBudget.held;
      return { reclaimable: reclaimable * MIB, needed: (held - reclaimable) * MIB };
    },
  );
  labelledCounter(
    registry,
    'releap_vmm_oom_kills_total',
    'How often the kernel has killed a VMM for memory',
    'limit',
    () => oomKills.counts,
  );
  labelledGauge(
    registry,
    'releap_quarantine_items',
    'Resources that control has not named for long',
    'kind',
    () =>
      Object.fromEntries(Object.entries(quarantines).map(([kind, { entries }]) => [kind, entries.length])),
  );
  const expiry = new Gauge({
    ...EXPIRY_METRIC,
    registers: [],
    collect() {
      this.set(expirySeconds(certificate));
    },
  });
  registry.registerMetric(expiry);
  const space = (name: string, help: string, value: (watch: SpaceWatch) => number | undefined): void =>
    labelledGauge(registry, name, help, 'folder', () =>
      Object.fromEntries(
        spaces.flatMap((watch) => {
          const number = value(watch);
          return number === undefined ? [] : [[watch.folder, number]];
        }),
      ),
    );
  space(
    'releap_disk_free_bytes',
    'Free space of a file system that sandboxes write to',
    ({ last }) => last?.freeBytes,
  );
  space('releap_disk_free_inodes', 'Its free inodes', ({ last }) =>
    last?.totalInodes === 0 ? undefined : last?.freeInodes,
  );
  space('releap_disk_short', '1 while guests are paused because it is nearly full', ({ isShort }) =>
    Number(isShort),
  );
}

async function tracked(): Promise<Record<string, number>> {
  const read = async (name: string): Promise<number> => Number(await readFile(`${CONNTRACK}${name}`, 'utf8'));
  try {
    return { count: await read('count'), max: await read('max') };
  } catch {
    return {};
  }
}
