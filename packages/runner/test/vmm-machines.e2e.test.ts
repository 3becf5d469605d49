import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import type { SpawnSyncReturns } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readdir, readFile, readlink, stat, truncate, writeFile } from 'node:fs/promises';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { after, afterEach, before, describe, it, mock } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually } from '@releap/testing/eventually';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { GuestClient } from '../src/guest/index.ts';
import { warmUp } from '../src/guest/warm-up.ts';
import { warmUpConfig } from '../src/reconcile/guest-config.ts';
import { ImageStore } from '../src/image/image-store.ts';
import type { RunningVm } from '../src/machine/index.ts';
import { WarmPools, WarmVms } from '../src/machine/index.ts';
import { VmFolders } from '../src/machine/vm-folder.ts';
import { run } from '../src/process/index.ts';
import { isAlive } from '../src/vmm/process-identity.ts';
import { QemuVm } from '../src/vmm/qemu/vm.ts';
import { firstBefore } from './support/first-before.ts';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { BUILD_DIR, log, SHAPE, testMachines, TestSlot } from './support/machines.ts';

const CPU = { guaranteed: 0.5, max: 2 };

let rootImagePath: string;
let slot: TestSlot;
let service: Awaited<ReturnType<typeof testMachines>>;
before(async () => {
  const images = new ImageStore({ cacheDir: TEST_CACHE, log, packagesDir: join(BUILD_DIR, 'packages') });
  rootImagePath = (await images.ensure({ type: 'builtin', name: 'busybox' })).path;
  await images.close();
  slot = new TestSlot(0);
  service = await testMachines();
});
after(async () => {
  await service[Symbol.asyncDispose]();
  slot[Symbol.dispose]();
});

// What a failed test leaves must not fail the next: they share one slot.
afterEach(async () => {
  await service.machines.reclaim(new Set());
});

async function boot(vmId: string, more: { scratchMib?: number; onConsole?: (chunk: Buffer) => void } = {}) {
  const { scratchMib = 64, onConsole } = more;
  const disks = { rootImagePath, scratchMib };
  return await service.machines.boot({ vmId, slot, shape: SHAPE, disks, cpu: CPU, onConsole });
}

/** Gives the guest its identity and disks; answers what a command in it prints. */
async function configured(running: RunningVm): Promise<GuestClient> {
  const guest = await GuestClient.open(running.agentSocketPath, { log });
  await guest.configure({
    hostname: 'test',
    machineId: randomBytes(16).toString('hex'),
    clockNs: BigInt(Date.now()) * 1_000_000n,
    entropy: randomBytes(32),
    network: { address: '172.16.0.2', prefix: 30, gateway: '172.16.0.1' },
    disks: {
      root: { device: 'vda', mounted: running.hasRootMounted ?? false },
      scratch: { device: 'vdb', bytes: running.diskBytes.scratch },
    },
  });
  return guest;
}

async function sh(guest: GuestClient, command: string): Promise<string> {
  const child = guest.exec({ shell: command });
  let text = '';
  child.stdout.on('data', (chunk: Buffer) => {
    text += chunk.toString();
  });
  child.stderr.on('data', (chunk: Buffer) => {
    text += chunk.toString();
  });
  await child.exit;
  return text;
}

async function processStatus(pid: number): Promise<Record<string, string>> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8');
  return Object.fromEntries(text.split('\n').map((line) => line.split(/:\s*/, 2) as [string, string]));
}

async function remove(running: RunningVm, vmId: string): Promise<void> {
  running.vm.detach();
  await service.machines.destroy(vmId);
  assert.equal(isAlive(running.vm.identity), false);
  await assert.rejects(stat(join(service.home, 'vms', vmId)), { code: 'ENOENT' });
  assert.ok(!(await service.cgroups.list()).includes(`vm-${vmId}`));
}

describe('a micro-VM', () => {
  it('runs its image on a write layer of its own, is found again after a restart, and leaves nothing', async () => {
    const running = await boot('life');
    const guest = await configured(running);
    assert.match(await sh(guest, 'echo hello > /file; cat /file; nproc'), /^hello\n2\n$/);
    const clock = '/sys/devices/system/clocksource/clocksource0/current_clocksource';
    assert.match(await sh(guest, `cat ${clock}`), /^(tsc|kvm-clock)\n$/);
    assert.match(await sh(guest, 'df -m / | tail -n 1'), /\s[56]\d\s/);
    assert.match(await sh(guest, 'ping -c 1 -W 60 172.16.0.1'), /1 packets received/);
    guest.close();
    running.vm.detach();

    // Another runner of the same home.
    const counted = await service.machines.counterSource('life');
    const restarted = await service.open();
    await restarted.machines.reclaim(new Set(['life']));
    let console = '';
    const adopted = await restarted.machines.adopt('life', {
      onConsole: (chunk) => {
        console += chunk.toString();
      },
    });
    assert.deepEqual(adopted.diskBytes, running.diskBytes);
    const again = await GuestClient.open(adopted.agentSocketPath, { log });
    assert.equal(await sh(again, 'cat /file; echo printed > /dev/console'), 'hello\n');
    while (!console.includes('printed')) await new Promise((resolve) => setTimeout(resolve, 5));
    const usage = await restarted.machines.usage('life');
    assert.ok(usage && usage.cpuMicros > 0 && usage.memoryBytes > 0);
    // It is the same life of a VMM for metering, whichever runner reads it.
    const later = await restarted.machines.counterSource('life');
    assert.ok(counted);
    assert.deepEqual(later, counted);
    again.close();
    await remove(adopted, 'life');
    await service.machines.destroy('life');
    assert.equal(await restarted.machines.counterSource('life'), undefined);
    await assert.rejects(restarted.machines.adopt('life'), /never completed|has ended/);
  });

  it('is jailed: no root, its own root folder, network and cgroup, filtered system calls', async () => {
    const running = await boot('jail');
    const { pid } = running.vm.identity;
    const status = await processStatus(pid);
    assert.equal(status['Uid'], Array(4).fill(slot.uid).join('\t'));
    assert.equal(status['Gid'], Array(4).fill(slot.uid).join('\t'));
    assert.match(status['Groups']?.trim() ?? '', new RegExp(`^(${slot.uid})?$`));
    assert.equal(status['CapEff'], '0000000000000000');
    assert.equal(status['NoNewPrivs'], '1');
    assert.equal(status['Seccomp'], '2');
    const limits = await readFile(`/proc/${pid}/limits`, 'utf8');
    assert.match(limits, /^Max processes +512 +512 /m);
    assert.match(limits, /^Max locked memory +0 +0 /m);
    assert.equal((await stat(`/proc/${pid}/ns/net`)).ino, (await stat(slot.netnsPath)).ino);
    assert.match(await readFile(`/proc/${pid}/cgroup`, 'utf8'), /vm-jail$/m);
    assert.equal((await stat(join(service.home, 'vms', 'jail'))).mode & 0o777, 0o700);
    await remove(running, 'jail');
  });

  it('reaches nothing of the host but its own folder, and behind that its VMM', async () => {
    const running = await boot('root');
    const { pid } = running.vm.identity;
    const folder = join(service.home, 'vms', 'root', 'jail');
    assert.equal((await stat(`/proc/${pid}/root`)).ino, (await stat(folder)).ino);
    assert.deepEqual(await readdir(`/proc/${pid}/root`), await readdir(folder));
    // Of all mounts, those that are reachable from its root.
    const mounts = (await readFile(`/proc/${pid}/mountinfo`, 'utf8')).trim().split('\n');
    assert.equal(mounts.length, 1, mounts.join('\n'));
    assert.match(mounts[0] ?? '', /^\S+ \S+ \S+ \S+\/vms\/root\/jail \/ rw,nosuid,nodev,noexec/);
    // If it left its chroot it would be in the root of its mount namespace, where nsenter(1) begins.
    const inside = (...command: string[]): SpawnSyncReturns<string> =>
      spawnSync('nsenter', [`--mount=/proc/${pid}/ns/mnt`, ...command], { encoding: 'utf8' });
    assert.match(inside('/vmm/lib/ld-linux-x86-64.so.2', '--version').stdout, /^ld\.so /);
    assert.match(inside('/bin/sh', '-c', 'true').stderr, /No such file or directory/);
    // Files that it has open, but for what it maps: its disks' layers, its own output, the system disk.
    const open = await Promise.all(
      (await readdir(`/proc/${pid}/fd`)).map((fd) => readlink(`/proc/${pid}/fd/${fd}`).catch(() => '')),
    );
    const known = [join(service.home, 'vms/root/'), TEST_CACHE, '/vm/', '/memfd:', '/dev/null', '/net/tun'];
    assert.deepEqual(
      open.filter((target) => target.startsWith('/') && !known.some((prefix) => target.startsWith(prefix))),
      [],
    );
    await remove(running, 'root');
  });

  it('cannot change the memory that others are made from, even through its own descriptor', async () => {
    const running = await boot('seal');
    const memory = await open(`/proc/${running.vm.identity.pid}/fd/3`, 'r+');
    await assert.rejects(memory.write(Buffer.from('x'), 0, 1, 4096), { code: 'EPERM' });
    await memory.close();
    await remove(running, 'seal');
  });

  it('says so when its VMM dies, and is removed all the same', async () => {
    const running = await boot('death');
    const reason = new Promise<string>((resolve) => running.vm.onExit(resolve));
    process.kill(running.vm.identity.pid, 'SIGKILL');
    assert.match(await reason, /^the micro-VM ended by itself/);
    await remove(running, 'death');
  });

  it('fails with the reason when it is stopped by another process than the runner', async () => {
    const running = await boot('stopped');
    const reason = new Promise<string>((resolve) => running.vm.onExit(resolve));
    // A VMM that the runner stops has not failed.
    await running.vm.stop();
    await running.vm.continue();
    assert.equal(await running.vm.isRunning(), true);
    await (running.vm as QemuVm).qmp.execute('stop');
    assert.equal(await reason, 'the micro-VM stopped by itself (paused)');
    assert.equal(isAlive(running.vm.identity), false);
    await remove(running, 'stopped');
  });

  it('may use all of its memory, though it is the first to write to most of it', async () => {
    const running = await boot('full-memory');
    const guest = await configured(running);
    const fill =
      'mount -o remount,size=100% /dev/shm; dd if=/dev/zero of=/dev/shm/fill bs=1M count=380 2> /dev/null';
    assert.equal(
      await sh(guest, `${fill}; ls -s -k /dev/shm/fill; rm /dev/shm/fill`),
      '389120 /dev/shm/fill\n',
    );
    guest.close();
    await remove(running, 'full-memory');
  });

  it('is ended before the service by a host without memory', async () => {
    const running = await boot('victim');
    const score = await readFile(`/proc/${running.vm.identity.pid}/oom_score_adj`, 'utf8');
    const own = await readFile('/proc/self/oom_score_adj', 'utf8');
    assert.ok(Number(score) === 500 && Number(score) > Number(own), `${score} and ${own}`);
    await remove(running, 'victim');
  });

  it('is never created twice under one name, and one that fails to start can be created again', async () => {
    const running = await boot('twice');
    await assert.rejects(boot('twice'), { code: 'EEXIST' });
    assert.equal(running.vm.exited, false);
    await remove(running, 'twice');
    const disks = { rootImagePath: '/no/such/image', scratchMib: 64 };
    await assert.rejects(
      service.machines.boot({ vmId: 'twice', slot, shape: SHAPE, disks, cpu: CPU }),
      /\/no\/such\/image/,
    );
    await service.machines.destroy('twice');
    await remove(await boot('twice'), 'twice');
  });

  it('says so when its record cannot be written, as soon as that is known', async () => {
    mock.method(VmFolders.prototype, 'save', async () => await Promise.reject(new Error('no space left')));
    firstBefore(QemuVm.prototype, 'loadState', async () => await sleep(50));
    await assert.rejects(boot('full'), /no space left/);
    mock.restoreAll();
    await service.machines.destroy('full');
  });

  it('leaves no cgroup when its disks cannot be made while that is being made', async () => {
    firstBefore(CgroupTree.prototype, 'create', async () => await sleep(50));
    const from = {
      folder: '/nowhere',
      base: { file: 'base.ext4', kind: 'overlay', version: 1 } as const,
      layers: ['layer-0.qcow2'],
      identities: { 'layer-0.qcow2': { id: '0' } },
      bytes: 64 * 1024 * 1024,
    };
    const disks = { rootImagePath, scratchMib: 64, from };
    await assert.rejects(service.machines.boot({ vmId: 'bare', slot, shape: SHAPE, disks, cpu: CPU }));
    await service.machines.destroy('bare');
    await sleep(100);
    mock.restoreAll();
    assert.deepEqual(await service.cgroups.list(), []);
  });

  it('is reclaimed when no sandbox claims it, whatever is known of it', async () => {
    const running = await boot('orphan');
    running.vm.detach();
    await truncate(join(service.home, 'vms', 'orphan', 'vm.json'), 0);
    const restarted = await service.open();
    await restarted.machines.reclaim(new Set());
    assert.equal(isAlive(running.vm.identity), false);
    assert.deepEqual(await service.cgroups.list(), []);
  });

  it('names that climb are refused', async () => {
    for (const vmId of ['../x', '', '.', 'a/b', '-x', 'x'.repeat(65)]) {
      await assert.rejects(service.machines.destroy(vmId), /not an id of a VM/);
    }
  });
});

describe('the pools of waiting VMs', () => {
  it('hand a VM to one taker, who puts disks into it and owns it like any other', async () => {
    using other = new TestSlot(1);
    const { warm, pools, warmedUp } = poolsOf([slot, other]);
    await eventually('a VM and a VMM that wait', async () =>
      pools.stats.every(({ waiting }) => waiting === 1) ? true : undefined,
    );
    assert.deepEqual(warmedUp, [8 * 1024 * 1024]);
    const image = shared();
    assert.equal(warm.takeVm({ shape: { ...SHAPE, vcpus: 1 }, diskMib: 64, image }), undefined);
    assert.equal(warm.takeVm({ shape: SHAPE, diskMib: 512, image }), undefined);
    const taken = warm.takeVm({ shape: SHAPE, diskMib: 96, image });
    assert.ok(taken);
    assert.equal(warm.takeVm({ shape: SHAPE, diskMib: 96, image }), undefined);

    const disks = { rootImagePath, scratchMib: 96 };
    const running = await taken.attach({ vmId: 'pooled', shape: SHAPE, disks, cpu: CPU });
    assert.equal(running.hasRootMounted, true);
    assert.equal(running.diskBytes.scratch, 96 * 1024 * 1024);
    await assert.rejects(taken.attach({ vmId: 'other', shape: SHAPE, disks, cpu: CPU }), /no blank VM/);
    const guest = await configured(running);
    assert.equal(await sh(guest, 'echo mine > /file; sync; cat /file'), 'mine\n');
    assert.equal(await sh(guest, 'hostname; cat /etc/hostname'), 'test\ntest\n');
    const leftOfWarmUp = 'grep -c . /proc/mounts; ls / | tr "\\n" " "; ps | grep -cv "\\["';
    const seen = await sh(guest, leftOfWarmUp);
    guest.close();
    running.vm.detach();
    await pools.close();

    const restarted = await service.open();
    await restarted.machines.reclaim(new Set(['pooled']));
    const adopted = await restarted.machines.adopt('pooled');
    assert.equal(adopted.diskBytes.scratch, 96 * 1024 * 1024);
    adopted.vm.detach();
    await service.machines.destroy('pooled');
    assert.equal(isAlive(running.vm.identity), false);
    assert.deepEqual(await service.cgroups.list(), []);

    const direct = await boot('direct');
    const fresh = await configured(direct);
    assert.equal(await sh(fresh, 'echo mine > /file'), '');
    assert.equal(await sh(fresh, leftOfWarmUp), seen, 'nothing is left of the warm-up');
    fresh.close();
    direct.vm.detach();
    await service.machines.destroy('direct');
  });

  it('give a VM that warmed up with our image to a sandbox of another one, which sees its own alone', async () => {
    using other = new TestSlot(1);
    const { warm, pools } = poolsOf([slot, other]);
    await eventually('a VM waits', async () =>
      pools.stats.some(({ recipe, waiting }) => recipe.startsWith('template') && waiting === 1)
        ? true
        : undefined,
    );
    const image = { digest: 'sha256:another', path: await withMarker(rootImagePath) };
    const taken = warm.takeVm({ shape: SHAPE, diskMib: 96, image });
    assert.ok(taken);
    const disks = { rootImagePath: image.path, scratchMib: 96 };
    const running = await taken.attach({ vmId: 'exchanged', shape: SHAPE, disks, cpu: CPU });
    assert.equal(running.hasRootMounted, false);
    const guest = await configured(running);
    assert.equal(await sh(guest, 'cat /marker'), 'another image\n');
    guest.close();
    running.vm.detach();
    await pools.close();
    await service.machines.destroy('exchanged');
  });

  it('keep VMs for an image that is asked for repeatedly, and give them to sandboxes of that image alone', async () => {
    using second = new TestSlot(1);
    using third = new TestSlot(2);
    const { warm, pools } = poolsOf([slot, second, third]);
    const template = (): (typeof pools.stats)[number][] =>
      pools.stats.filter(({ recipe }) => recipe.startsWith('template'));
    await eventually('a VM waits', async () => (template()[0]?.waiting === 1 ? true : undefined));
    const own = { digest: 'sha256:own', path: rootImagePath };
    const first = warm.takeVm({ shape: SHAPE, diskMib: 96, image: own });
    // At once: another one is made already. So often that it is still wanted when a slow machine comes to making it.
    for (let more = 0; more < 5; more++)
      assert.equal(warm.takeVm({ shape: SHAPE, diskMib: 96, image: own }), undefined);
    await first?.discard();
    const name = await eventually('a VM of that image waits', async () =>
      template().find(({ recipe, waiting }) => recipe.endsWith('sha256:own') && waiting === 1),
    );
    assert.ok(name);
    assert.equal(
      warm.takeVm({ shape: { ...SHAPE, vcpus: 1 }, diskMib: 96, image: shared() }),
      undefined,
      'it is not given to another image',
    );
    const taken = warm.takeVm({ shape: SHAPE, diskMib: 96, image: own });
    assert.ok(taken);
    const disks = { rootImagePath, scratchMib: 96 };
    const running = await taken.attach({ vmId: 'own', shape: SHAPE, disks, cpu: CPU });
    assert.equal(running.hasRootMounted, true);
    const guest = await configured(running);
    assert.equal(await sh(guest, 'hostname'), 'test\n');
    guest.close();
    running.vm.detach();
    await pools.close();
    await service.machines.destroy('own');
  });
});

/** The same image with one more file. */
async function withMarker(image: string): Promise<string> {
  const folder = await temporaryFolder('releap-marker-');
  const root = join(folder, 'root');
  await run('unsquashfs', ['-no-progress', '-d', root, image], { deadlineMs: 60_000 });
  await writeFile(join(root, 'marker'), 'another image\n');
  await run('mksquashfs', [root, join(folder, 'image'), '-quiet', '-no-progress'], { deadlineMs: 60_000 });
  return join(folder, 'image');
}

function shared(): { digest: string; path: string } {
  return { digest: 'sha256:shared', path: rootImagePath };
}

/** One VM that waits, on the slots given. */
function poolsOf(free: TestSlot[]): { warm: WarmVms<TestSlot>; pools: WarmPools; warmedUp: number[] } {
  const warmedUp: number[] = [];
  const pools = new WarmPools({ budgetMib: 1024, log });
  const used = new Map<string, TestSlot>();
  const warm = new WarmVms({
    machines: service.machines,
    pools,
    slots: {
      take: (id) => {
        const slot = free.shift();
        if (slot === undefined) return Promise.reject(new Error('no slot is free'));
        used.set(id, slot);
        return Promise.resolve(slot);
      },
      release: (id) => {
        const slot = used.get(id);
        if (slot !== undefined && used.delete(id)) free.push(slot);
        return Promise.resolve();
      },
    },
    shape: SHAPE,
    size: 1,
    diskMaxMib: 256,
    warmUp: {
      image: () => Promise.resolve(shared()),
      scratchMib: 8,
      run: async (running) => {
        warmedUp.push(running.diskBytes.scratch);
        await warmUp(running.agentSocketPath, warmUpConfig(running), log);
      },
    },
  });
  pools.start();
  return { warm, pools, warmedUp };
}
