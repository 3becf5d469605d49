/** Trees of cgroups where systemd runs: on a real machine, as in the KVM machine of `npm run test:kvm`. */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { until } from '@releap/testing/eventually';
import { detectLayout } from '../src/cgroup/cgroup-files.ts';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { ioMaxLines } from '../src/cgroup/disk-limit.ts';
import { isBootedBySystemd } from '../src/cgroup/systemd-unit.ts';

const LIMITS = { cpu: 0.5, cpuMax: 2, memoryMib: 256, pids: 100 };
const OF_TREE = { cores: 3, memoryMib: 512, ioWeight: 20 };

const layout = await detectLayout();
const skip =
  (layout.version === 1 && 'this machine has control groups of version 1') ||
  (!isBootedBySystemd() && 'systemd does not run on this machine');

describe('cgroups where systemd runs', { skip }, () => {
  let home: string;
  let unit: string;
  let processes: ChildProcess[];
  beforeEach(() => {
    home = `/test/${randomBytes(8).toString('hex')}`;
    unit = `${CgroupTree.nameOf(home)}.service`;
    processes = [];
  });
  afterEach(async () => {
    for (const child of processes) child.kill('SIGKILL');
    spawnSync('systemctl', ['stop', unit]);
  });

  function systemctl(...args: string[]): string {
    return execFileSync('systemctl', args, { encoding: 'utf8' }).trim();
  }

  async function processIn(procs: readonly string[]): Promise<number> {
    const child = spawn('sleep', ['100000']);
    processes.push(child);
    await once(child, 'spawn');
    for (const file of procs) await writeFile(file, String(child.pid));
    return child.pid ?? assert.fail();
  }

  const read = async (folder: string, file: string): Promise<string> =>
    (await readFile(join(folder, file), 'utf8')).trim();

  it('lie below a unit of their own, which systemd leaves alone', async () => {
    const tree = await CgroupTree.open(home, OF_TREE);
    const [procs = ''] = await tree.create('vm-a', LIMITS);
    const folder = dirname(procs);
    const parent = dirname(folder);
    assert.match(parent, new RegExp(`/${unit}$`));
    const pid = await processIn([procs]);
    for (let times = 0; times < 2; times++) {
      assert.deepEqual(await tree.processes('vm-a'), [pid]);
      assert.deepEqual((await read(parent, 'cgroup.subtree_control')).split(' ').sort(), [
        'cpu',
        'io',
        'memory',
        'pids',
      ]);
      assert.equal(await read(parent, 'cpu.weight'), '300');
      assert.equal(await read(parent, 'memory.max'), String(OF_TREE.memoryMib * 2 ** 20));
      assert.equal(await read(parent, 'pids.max'), 'max');
      assert.match(await read(parent, 'io.weight').catch(() => 'default 20'), /^default 20$/m);
      assert.equal(await read(folder, 'memory.max'), String(LIMITS.memoryMib * 2 ** 20));
      assert.equal(await read(folder, 'cpu.max'), '40000 20000');
      // It writes anew what is its own.
      systemctl('daemon-reload');
    }
    await tree.destroy('vm-a');
    await tree.close();
    assert.ok(!existsSync(parent));
    assert.equal(systemctl('show', '--property=ActiveState', '--value', unit), 'inactive');
  });

  it('are there for a later service, with its limits', async () => {
    const first = await CgroupTree.open(home, OF_TREE);
    const procs = await first.create('vm-a', LIMITS);
    const pid = await processIn(procs);
    const second = await CgroupTree.open(home, { cores: 5, memoryMib: 768 });
    assert.deepEqual(await second.list(), ['vm-a']);
    assert.deepEqual(await second.processes('vm-a'), [pid]);
    const parent = dirname(dirname(procs[0] ?? ''));
    await until(async () => (await read(parent, 'cpu.weight')) === '500');
    await until(async () => (await read(parent, 'memory.max')) === String(768 * 2 ** 20));
    await second.destroy('vm-a');
    const third = await CgroupTree.open(home, OF_TREE);
    assert.deepEqual(await third.create('vm-b', LIMITS), [procs[0]?.replace('vm-a', 'vm-b')]);
    await third.destroy('vm-b');
    await third.close();
  });

  it('outlive the unit of the service that has made them', async () => {
    const tree = await CgroupTree.open(home, OF_TREE);
    const [procs = ''] = await tree.create('vm-a', LIMITS);
    const service = unit.replace('releap-', 'releap-test-');
    const script = `sh -c 'echo 0 > ${procs}; exec sleep 100000' & wait`;
    execFileSync('systemd-run', ['--quiet', '--collect', `--unit=${service}`, 'sh', '-c', script]);
    await until(async () => (await tree.processes('vm-a')).length === 1);
    const before = await tree.processes('vm-a');
    systemctl('stop', service);
    assert.deepEqual(await (await CgroupTree.open(home, OF_TREE)).processes('vm-a'), before);
    await tree.destroy('vm-a');
    await tree.close();
  });

  it('have the limits of a disk each', async () => {
    const [line = ''] = await ioMaxLines({ mibPerSecond: 10 }, ['/var']);
    assert.match(line, /^\d+:\d+ rbps=10485760 wbps=10485760 riops=max wiops=max$/);
    const tree = await CgroupTree.open(home, { ...OF_TREE, ioMax: [line] });
    const [procs = ''] = await tree.create('vm-a', LIMITS);
    assert.equal(await read(dirname(procs), 'io.max'), line);
    assert.equal(await read(dirname(dirname(procs)), 'io.max'), '');
    await tree.destroy('vm-a');
    await tree.close();
    const none = CgroupTree.open(home, { ...OF_TREE, ioMax: [line.replace(/^\d+:\d+/, '4095:1')] });
    await assert.rejects(none, /disk 4095:1 .* cannot be limited/);
    assert.equal(systemctl('show', '--property=ActiveState', '--value', unit), 'inactive');
  });

  it('outlive their own unit, and stay where they are until none is left', async () => {
    const tree = await CgroupTree.open(home, OF_TREE);
    const [procs = ''] = await tree.create('vm-a', LIMITS);
    const pid = await processIn([procs]);
    systemctl('kill', '--kill-whom=main', '--signal=KILL', unit);
    await until(() => systemctl('show', '--property=ActiveState', '--value', unit) === 'failed');
    const second = await CgroupTree.open(home, { ...OF_TREE, cores: 4 });
    assert.deepEqual(await second.list(), ['vm-a']);
    assert.deepEqual(await second.processes('vm-a'), [pid]);
    assert.equal(await read(dirname(dirname(procs)), 'cpu.weight'), '400');
    await second.destroy('vm-a');
    const third = await CgroupTree.open(home, OF_TREE);
    assert.equal(systemctl('show', '--property=ActiveState', '--value', unit), 'active');
    assert.deepEqual(await third.create('vm-b', LIMITS), [procs.replace('vm-a', 'vm-b')]);
    await third.destroy('vm-b');
    await third.close();
  });

  it('of an earlier release stay where they are, until none is left', async () => {
    const { root } = layout as { root: string };
    const old = join(root, CgroupTree.nameOf(home));
    await mkdir(join(old, 'vm-a'), { recursive: true });
    const pid = await processIn([join(old, 'vm-a/cgroup.procs')]);
    const tree = await CgroupTree.open(home, OF_TREE);
    assert.deepEqual(await tree.processes('vm-a'), [pid]);
    await tree.setLimits('vm-a', LIMITS);
    assert.equal(await read(old, 'memory.max'), String(OF_TREE.memoryMib * 2 ** 20));
    await tree.destroy('vm-a');
    const later = await CgroupTree.open(home, OF_TREE);
    const [procs = ''] = await later.create('vm-b', LIMITS);
    assert.match(procs, new RegExp(`/${unit}/vm-b/`));
    assert.ok(!existsSync(old));
    await later.destroy('vm-b');
    await later.close();
    await rmdir(old).catch(() => undefined);
  });
});
