import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { HostIdentity } from '@releap/certificates/hosts';
import { Registry } from 'prom-client';
import type { SpaceWatch } from '../src/disk/space-watch.ts';
import type { Quarantine } from '../src/quarantine/quarantine.ts';
import { hostMetrics } from '../src/metrics/host-metrics.ts';
import { OperationMetrics } from '../src/metrics/operation-metrics.ts';

function assertLines(text: string, lines: readonly string[]): void {
  for (const line of lines) assert.ok(text.split('\n').includes(line), `${line}\n${text}`);
}

it('metrics of a host say what it has left and what went wrong, as it is now', async () => {
  const registry = new Registry();
  const counts = { slots: { ready: 4, held: 2 }, helperEnds: { netd: 1 }, firewallRestores: 1 };
  const watch = {
    folder: '/data',
    isShort: true,
    last: { freeBytes: 5, totalBytes: 100, freeInodes: 7, totalInodes: 70 },
  };
  const unread = { folder: '/cache', isShort: false, last: undefined };
  hostMetrics(registry, {
    reconciler: { counts: { running: 3, frozen: 2, silent: 1 } },
    network: { counts },
    memoryBudget: { held: { mem_mib: 3, reclaimable_mib: 2 } },
    oomKills: { counts: { sandbox: 2, host: 1, unknown: 0 } },
    spaces: [watch, unread] as unknown as SpaceWatch[],
    quarantines: { volume: { entries: [{}] } as unknown as Quarantine },
    certificate: { current: { notAfter: new Date(5_000) } as HostIdentity },
  });
  assertLines(await registry.metrics(), [
    'releap_host_sandboxes{state="running"} 3',
    'releap_host_sandboxes{state="frozen"} 2',
    'releap_host_sandboxes{state="silent"} 1',
    'releap_network_slots{state="ready"} 4',
    'releap_helper_ends_total{helper="netd"} 1',
    'releap_firewall_restores_total 1',
    `releap_memory_held_bytes{kind="needed"} ${2 ** 20}`,
    `releap_memory_held_bytes{kind="reclaimable"} ${2 * 2 ** 20}`,
    'releap_vmm_oom_kills_total{limit="sandbox"} 2',
    'releap_vmm_oom_kills_total{limit="host"} 1',
    'releap_vmm_oom_kills_total{limit="unknown"} 0',
    'releap_quarantine_items{kind="volume"} 1',
    'releap_host_certificate_expiry_timestamp_seconds 5',
    'releap_disk_free_bytes{folder="/data"} 5',
    'releap_disk_free_inodes{folder="/data"} 7',
    'releap_disk_short{folder="/data"} 1',
    'releap_disk_short{folder="/cache"} 0',
  ]);
  counts.firewallRestores = 2;
  counts.helperEnds.netd = 3;
  const later = await registry.metrics();
  assertLines(later, ['releap_firewall_restores_total 2', 'releap_helper_ends_total{helper="netd"} 3']);
  assert.doesNotMatch(later, /releap_disk_free_bytes\{folder="\/cache"\}/);
});

it('operations are counted by how they end: done, failed, or given up for something newer', async () => {
  const registry = new Registry();
  const operations = new OperationMetrics();
  operations.register(registry);
  const fail = (): Promise<never> => Promise.reject(new Error('no'));
  assert.equal(await operations.run('boot', () => Promise.resolve(1)), 1);
  await assert.rejects(operations.run('boot', fail), /no/);
  await assert.rejects(operations.run('boot', fail, AbortSignal.abort()), /no/);
  assertLines(await registry.metrics(), [
    'releap_operation_duration_seconds_count{operation="boot",outcome="ok"} 1',
    'releap_operation_duration_seconds_count{operation="boot",outcome="failed"} 1',
    'releap_operation_duration_seconds_count{operation="boot",outcome="cancelled"} 1',
  ]);
});
