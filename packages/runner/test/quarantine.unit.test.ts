import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { DesiredState } from '@releap/contract';
import { pino } from 'pino';
import { eventually } from '@releap/testing/eventually';
import { Orphans } from '../src/quarantine/orphans.ts';
import { Quarantine } from '../src/quarantine/quarantine.ts';
import { OperationMetrics } from '../src/metrics/operation-metrics.ts';
import { Reconciler } from '../src/reconcile/reconciler.ts';
import type { LiveSandbox, SandboxHost } from '../src/reconcile/sandbox-host.ts';
import { RecordStore } from '../src/reconcile/sandbox-record.ts';
import { SPEC } from './support/sandbox-spec.ts';
import type { Assignment, Observation } from '../src/reconcile/assignment.ts';

const log = pino({ enabled: false });
const idOf = (n: number): string => `91111111-2222-4333-8444-00000000000${n}`;
const [FIRST, SECOND] = [idOf(1), idOf(2)];
const DAY_MS = 24 * 60 * 60_000;

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-quarantine-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

/** A host whose sandboxes are a file each. */
class FileHost {
  readonly vms: string;
  ended: string[] = [];
  endFails = 0;

  constructor(vms: string) {
    this.vms = vms;
  }

  disk = (vmId: string): string => join(this.vms, vmId, 'keep', 'disk');
  hasImage = async (): Promise<boolean> => true;
  hasTemplate = async (): Promise<boolean> => true;
  makeTemplate = async (): Promise<void> => undefined;
  acquireImage = async (): Promise<object> => ({ digest: 'sha256:0', [Symbol.dispose]: () => undefined });
  discardMemory = async (): Promise<void> => undefined;
  destroy = async (vmId: string): Promise<void> => {
    await rm(join(this.vms, vmId), { recursive: true, force: true });
  };

  end = async (vmId: string): Promise<void> => {
    if (this.endFails-- > 0) throw new Error('the VMM cannot be ended');
    this.ended.push(vmId);
  };

  boot = async ({ vm_id: vmId }: Assignment): Promise<LiveSandbox> => {
    await mkdir(join(this.vms, vmId, 'keep'), { recursive: true });
    await writeFile(this.disk(vmId), `data of ${vmId}`, { flag: 'a' });
    const live = {
      addresses: { vm_ip: '100.64.0.2', host_ip: '127.0.0.1', port_map: [] },
      shutDown: async (): Promise<void> => undefined,
      compactDisk: async (): Promise<void> => undefined,
      close: async (): Promise<void> => undefined,
    };
    return live as unknown as LiveSandbox;
  };

  localState = async (vmId: string): Promise<object> => {
    const disk = await readFile(this.disk(vmId)).then(
      () => true,
      () => false,
    );
    return { disk, memory: false, resumed: false, hostRestarted: false };
  };
}

class World {
  readonly observations: Observation[] = [];
  readonly host: FileHost;
  readonly quarantine: Quarantine;
  readonly reconciler: Reconciler;
  readonly orphans: Orphans;
  readonly home: string;

  private constructor(home: string) {
    this.home = home;
    this.host = new FileHost(join(home, 'vms'));
    this.quarantine = new Quarantine({
      folder: join(home, 'quarantine/sandboxes'),
      source: join(home, 'vms'),
      log,
    });
    this.reconciler = new Reconciler({
      operations: new OperationMetrics(),
      host: this.host as unknown as SandboxHost,
      records: new RecordStore(join(home, 'state')),
      quarantine: this.quarantine,
      report: (observation) => this.observations.push(observation),
      log,
    });
    this.orphans = new Orphans({ kinds: [this.reconciler], folder: join(home, 'quarantine'), log });
  }

  static async open(home?: string): Promise<World> {
    const world = new World(home ?? (await mkdtemp(join(folder, 'home-'))));
    await world.quarantine.open();
    await world.reconciler.load();
    await world.reconciler.recover();
    return world;
  }

  /** A link is connected, and control names these and nothing else. */
  async sync(...assignments: Assignment[]): Promise<void> {
    this.orphans.linked();
    this.reconciler.linked();
    for (const assignment of assignments) this.reconciler.assign(assignment);
    this.orphans.synced();
    await this.idle(...assignments.map(({ vm_id }) => vm_id));
  }

  async idle(...ids: string[]): Promise<void> {
    await this.orphans.idle();
    await this.reconciler.moved();
    for (const id of ids) await this.reconciler.get(id)?.idle();
  }

  async quarantined(): Promise<string[]> {
    const names = await readdir(join(this.home, 'quarantine/sandboxes')).catch(() => [] as string[]);
    return names.map((name) => name.replace(/-\d{8}T\d{6}Z$/, '')).sort();
  }
}

function wanted(vmId: string, generation = 1, desired: DesiredState = 'running', more = {}): Assignment {
  return { vm_id: vmId, generation, desired, spec: { ...SPEC, ...more } };
}

describe('a sandbox that control does not name any more', () => {
  it('is stopped, and its disk is kept in quarantine', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    await world.sync();
    assert.deepEqual(await world.quarantined(), [FIRST]);
    assert.equal(world.reconciler.get(FIRST), undefined);
    assert.ok(world.host.ended.includes(FIRST));
    assert.deepEqual(await readdir(join(world.home, 'state')), []);
  });

  it('is back with every byte when control names it again', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    const before = await readFile(world.host.disk(FIRST), 'utf8');
    await world.sync();
    await world.sync(wanted(FIRST, 2, 'stopped'));
    assert.deepEqual(await world.quarantined(), []);
    assert.equal(await readFile(world.host.disk(FIRST), 'utf8'), before);
    const { status, manifest_name } = world.observations.at(-1) ?? {};
    assert.deepEqual({ status, manifest_name }, { status: 'stopped', manifest_name: 'sha256:0' });
  });

  it('is back when another runner of this host is assigned it', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    await world.sync();
    const next = await World.open(world.home);
    assert.equal(next.reconciler.get(FIRST), undefined);
    await next.sync(wanted(FIRST, 2, 'stopped'));
    assert.equal(await readFile(next.host.disk(FIRST), 'utf8'), `data of ${FIRST}`);
    assert.equal(next.observations.at(-1)?.status, 'stopped');
  });

  it('is removed when control says that it is deleted', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    await world.sync();
    await world.sync(wanted(FIRST, 2, 'deleted'));
    assert.deepEqual(await world.quarantined(), []);
    assert.deepEqual(await readdir(world.host.vms), []);
    assert.equal(world.observations.at(-1)?.status, 'deleted');
  });

  it('is removed with its VM when it is ephemeral', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST, 1, 'running', { persistent: false }));
    await world.sync();
    assert.deepEqual(await world.quarantined(), []);
    assert.deepEqual(await readdir(world.host.vms), []);
  });

  it('goes into quarantine later when it cannot be ended at first', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    world.host.endFails = 1;
    await world.sync();
    assert.deepEqual(await world.quarantined(), [FIRST]);
    assert.deepEqual(await readdir(join(world.home, 'state')), []);
  });

  it('goes into quarantine without a record that can be read', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    await writeFile(join(world.home, 'state', `${FIRST}.json`), '');
    const next = await World.open(world.home);
    await next.sync();
    assert.deepEqual(await next.quarantined(), [FIRST]);
    await next.sync(wanted(FIRST, 2, 'running', { disk_manifest: 'sha256:0' }));
    assert.equal(next.observations.at(-1)?.status, 'running');
    assert.equal(await readFile(next.host.disk(FIRST), 'utf8'), `data of ${FIRST}`.repeat(2));
  });

  it('stays when control names it in a later part of the sync', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST), wanted(SECOND));
    world.reconciler.linked();
    world.reconciler.assign(wanted(FIRST));
    world.reconciler.assign(wanted(SECOND));
    world.orphans.synced();
    await world.idle();
    assert.deepEqual(await world.quarantined(), []);
    assert.ok(world.reconciler.get(FIRST)?.isRunning);
  });
});

describe('a sync that leaves out most of a host', () => {
  const ids = [1, 2, 3, 4, 5].map(idOf);

  async function held(): Promise<World> {
    const world = await World.open();
    await world.sync(...ids.map((id) => wanted(id)));
    return world;
  }

  it('touches nothing', async () => {
    const world = await held();
    world.host.ended = [];
    await world.sync(wanted(FIRST));
    assert.deepEqual(await world.quarantined(), []);
    assert.deepEqual(world.host.ended, []);
    assert.ok(ids.every((id) => world.reconciler.get(id)?.isRunning));
    const { refused } = JSON.parse(await readFile(join(world.home, 'quarantine/refused.json'), 'utf8'));
    assert.deepEqual(refused, [{ kind: 'sandbox', absent: 4, total: 5, ids: ids.slice(1) }]);
    world.orphans.close();
  });

  it('is obeyed once the operator confirms it', async () => {
    const world = await held();
    await world.sync();
    await writeFile(world.orphans.confirmPath, '');
    await eventually('quarantine', async () => {
      await world.idle();
      return (await world.quarantined()).length === ids.length;
    });
    // The confirmation is for one sync.
    assert.deepEqual(await readdir(join(world.home, 'quarantine')), ['sandboxes']);
  });

  it('is forgotten when control names them again', async () => {
    const world = await held();
    await world.sync();
    await world.sync(...ids.map((id) => wanted(id)));
    await writeFile(world.orphans.confirmPath, '');
    await world.idle();
    assert.deepEqual(await world.quarantined(), []);
    assert.deepEqual((await readdir(join(world.home, 'quarantine'))).includes('refused.json'), false);
  });

  it('is obeyed for those that control names deleted', async () => {
    const world = await held();
    await world.sync(...ids.map((id) => wanted(id, 2, 'deleted')));
    assert.deepEqual(await readdir(world.host.vms), []);
  });
});

describe('a start', () => {
  it('of a sandbox that has had a disk fails when the disk is not there, and makes no empty one', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST, 3, 'running', { disk_manifest: 'sha256:0' }));
    const { status, error } = world.observations.at(-1) ?? {};
    assert.deepEqual(
      { status, error },
      { status: 'failed', error: 'its disk is not on this machine any more' },
    );
    assert.deepEqual(await readdir(world.host.vms).catch(() => []), []);
  });

  it('of a sandbox whose record is gone but whose disk is there boots that disk', async () => {
    const world = await World.open();
    await world.sync(wanted(FIRST));
    await rm(join(world.home, 'state', `${FIRST}.json`));
    const next = await World.open(world.home);
    await next.sync(wanted(FIRST, 2, 'running', { disk_manifest: 'sha256:0' }));
    assert.equal(next.observations.at(-1)?.status, 'running');
    assert.equal(await readFile(next.host.disk(FIRST), 'utf8'), `data of ${FIRST}`.repeat(2));
  });
});

describe('the quarantine', () => {
  async function parked(...ids: string[]): Promise<{ quarantine: Quarantine; home: string }> {
    const home = await mkdtemp(join(folder, 'parked-'));
    const quarantine = new Quarantine({ folder: join(home, 'quarantine'), source: join(home, 'vms'), log });
    for (const id of ids) {
      await mkdir(join(home, 'vms', id), { recursive: true });
      await writeFile(join(home, 'vms', id, 'disk'), id);
      assert.equal(await quarantine.park(id), true);
    }
    return { quarantine, home };
  }

  it('removes what has been there for longer than it keeps, and nothing else', async () => {
    const { quarantine, home } = await parked(FIRST, SECOND);
    const [first] = await readdir(join(home, 'quarantine'));
    const old = `${FIRST}-20250101T000000Z`;
    await rename(join(home, 'quarantine', first as string), join(home, 'quarantine', old));
    const again = new Quarantine({ folder: join(home, 'quarantine'), source: join(home, 'vms'), log });
    await again.open();
    assert.deepEqual(
      (await again.purge(7 * DAY_MS)).map(({ id }) => id),
      [FIRST],
    );
    assert.equal(again.has(FIRST), false);
    assert.equal(await again.restore(SECOND), true);
    assert.equal(quarantine.entries.length, 2);
  });

  it('restores nothing to a path that is taken', async () => {
    const { quarantine, home } = await parked(FIRST);
    await mkdir(join(home, 'vms', FIRST));
    await assert.rejects(quarantine.restore(FIRST), /exists already/);
    assert.equal(quarantine.has(FIRST), true);
  });

  it('takes no name that leads out of its folders', async () => {
    const { quarantine } = await parked();
    for (const id of ['..', '../x', 'a/b', '']) await assert.rejects(quarantine.park(id), /not an id/);
  });

  it('takes nothing that is not there', async () => {
    const { quarantine } = await parked();
    assert.equal(await quarantine.park(FIRST), false);
    assert.equal(await quarantine.restore(FIRST), false);
  });
});
