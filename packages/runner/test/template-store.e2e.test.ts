import assert from 'node:assert/strict';
import {
  cp,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  truncate,
  writeFile,
} from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it, mock } from 'node:test';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { awaitAgent } from '../src/template/agent-hello.ts';
import { SealedMemory } from '../src/memory/sealed-memory.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import {
  checkMachineSize,
  guestSize,
  roundUpSize,
  templateKey,
  usableMib,
} from '../src/template/machine-size.ts';
import type { Platform, MachineSize } from '../src/template/machine-size.ts';
import { makeTemplate, UselessBootError } from '../src/template/make-template.ts';
import { lockFile } from '../src/lock/file-lock.ts';
import { TemplateStore } from '../src/template/template-store.ts';
import type { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { driverWith } from './support/driver.ts';
import { log, SHAPE, testMachines, TestSlot } from './support/machines.ts';

let dir: string;
before(async () => {
  dir = await temporaryFolder('releap-template-');
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

describe('sealed memory', () => {
  it('holds what the file held, and can be mapped but not written', async () => {
    const path = join(dir, 'memory');
    const file = await open(path, 'w');
    await file.truncate(8 * 1024 * 1024);
    await file.write(Buffer.from('somewhere'), 0, 9, 5 * 1024 * 1024 + 123);
    await file.close();
    await using memory = await SealedMemory.load(path);
    const again = await open(`/proc/self/fd/${memory.fd}`, 'r+');
    try {
      const { size, blocks } = await again.stat();
      assert.equal(size, 8 * 1024 * 1024);
      assert.ok(blocks * 512 <= 8192, 'zeros take no memory');
      const bytes = Buffer.alloc(9);
      await again.read(bytes, 0, 9, 5 * 1024 * 1024 + 123);
      assert.equal(bytes.toString(), 'somewhere');
      await assert.rejects(again.write(Buffer.from('x'), 0, 1, 0), { code: 'EPERM' });
      await assert.rejects(again.truncate(0), { code: 'EPERM' });
    } finally {
      await again.close();
    }
  });

  it('has the rest of a file around what was written to it first', async () => {
    const page = 4096;
    const path = join(dir, 'around');
    const file = await open(path, 'w');
    await file.truncate(64 * page);
    await file.write(Buffer.alloc(40 * page, 'f'), 0, 40 * page, 8 * page);
    await file.close();
    const { memory, seal } = await SealedMemory.begin(64 * page);
    await using _memory = memory;
    const target = await open(`/proc/self/fd/${memory.fd}`, 'r+');
    for (const at of [0, 8, 20, 21, 47, 63]) await target.write(Buffer.alloc(page, 'w'), 0, page, at * page);
    await target.close();
    await seal(path);
    const again = await open(`/proc/self/fd/${memory.fd}`, 'r');
    const content = await again.readFile('latin1');
    await again.close();
    const pages = Array.from({ length: 64 }, (_none, at) => content.slice(at * page, (at + 1) * page));
    const kinds = pages.map((text) => (new Set(text).size === 1 ? text.charAt(0) : '?')).join('');
    assert.equal(
      kinds.replaceAll('\0', '.'),
      `w.......w${'f'.repeat(11)}ww${'f'.repeat(25)}w${'.'.repeat(15)}w`,
    );
  });

  it('says what is wrong with a file that is not there', async () => {
    await assert.rejects(SealedMemory.load(join(dir, 'nothing')), /nothing cannot be loaded: .*no such file/);
  });
});

describe('a machine size', () => {
  it('is refused when a machine cannot have it', () => {
    for (const shape of [
      { vcpus: 0, memMib: 512 },
      { vcpus: 1.5, memMib: 512 },
      { vcpus: 65, memMib: 512 },
      { vcpus: 1, memMib: 64 },
      { vcpus: 1, memMib: Number.NaN },
    ]) {
      assert.throws(() => checkMachineSize(shape), /a micro-VM cannot have/);
    }
  });

  it('is rounded up to one of few', () => {
    const sizes = (asked: [number, number][]) =>
      asked.map(([vcpus, memMib]) => Object.values(roundUpSize({ vcpus, memMib })));
    const asked: [number, number][] = [
      [1, 128],
      [2, 1024],
      [3, 129],
      [5, 1025],
      [9, 4096],
      [16, 4097],
      [64, 65_535],
    ];
    assert.deepEqual(sizes(asked), [
      [1, 128],
      [2, 1024],
      [4, 256],
      [8, 1536],
      [16, 4096],
      [16, 5120],
      [64, 65_536],
    ]);
    assert.throws(() => roundUpSize({ vcpus: 1, memMib: 100 }), /a micro-VM cannot have/);
  });

  it('never has exactly 2 GiB, with which a microvm does not boot', () => {
    for (const memMib of [1537, 2000, 2048]) assert.equal(roundUpSize({ vcpus: 1, memMib }).memMib, 2050);
    assert.equal(roundUpSize({ vcpus: 1, memMib: 2049 }).memMib, 2560);
    assert.equal(usableMib(guestSize({ vcpus: 1, memMib: 2048 })), 2048);
  });

  it('leaves a sandbox what it asked for, in whole huge pages', () => {
    const usable = (memMib: number): number => usableMib(guestSize({ vcpus: 1, memMib }));
    for (const memMib of [128, 512, 1024, 4096, 160, 1100, 4098]) assert.equal(usable(memMib), memMib);
    // Rather a MiB more than one less.
    assert.equal(usable(129), 130);
    assert.deepEqual(guestSize({ vcpus: 2, memMib: 1024 }), { vcpus: 2, memMib: 1024 });
  });

  it('has another template on another processor, kernel, agent, VMM or accelerator', () => {
    const platform = {
      accelerator: 'tcg',
      driver: driverWith('7.2.22'),
      hostCpu: 'a',
      vmm: { version: '7.2.22', folder: '/vmm' },
      tscKhz: 1,
      kernel: { path: '/k', sha256: '1' },
      initramfs: { path: '/i', sha256: '2' },
      mac: '02:00:00:00:00:02',
      guestNet: 'x',
      hardware: { deviceModel: DEVICE_MODEL, system: { path: '/s', sha256: '4' } },
    } as const;
    const hardware = (deviceModel: number, sha256: string) => ({
      ...platform,
      hardware: { deviceModel, system: { path: '/s', sha256 } },
    });
    const key = templateKey(platform, SHAPE);
    assert.equal(templateKey({ ...platform, kernel: { path: '/elsewhere', sha256: '1' } }, SHAPE), key);
    const others = [
      templateKey({ ...platform, accelerator: 'kvm' }, SHAPE),
      templateKey({ ...platform, hostCpu: 'b' }, SHAPE),
      templateKey({ ...platform, vmm: { version: '8.2.0', folder: '/vmm' } }, SHAPE),
      templateKey({ ...platform, tscKhz: 2 }, SHAPE),
      templateKey({ ...platform, initramfs: { path: '/i', sha256: '3' } }, SHAPE),
      templateKey(hardware(DEVICE_MODEL, '5'), SHAPE),
      templateKey(hardware(DEVICE_MODEL - 1, '4'), SHAPE),
      templateKey(platform, { ...SHAPE, vcpus: 1 }),
    ];
    assert.equal(new Set([key, ...others]).size, 9);
  });
});

describe('the template store', () => {
  const platform = {
    accelerator: 'tcg',
    driver: driverWith('7.2.22'),
    kernel: { path: '', sha256: '' },
    initramfs: { path: '', sha256: '' },
    hardware: { deviceModel: DEVICE_MODEL, system: { path: '', sha256: '' } },
    vmm: { version: '7.2.22', folder: '/vmm' },
  } as Platform;

  /** One whose templates are there already, though no machine could be made from them. */
  async function stored(
    shapes: MachineSize[],
    pinned?: MachineSize,
  ): Promise<{ store: TemplateStore; folder: string }> {
    const cacheDir = await mkdtemp(join(dir, 'cache-'));
    const folder = join(cacheDir, 'templates');
    for (const shape of shapes) {
      const key = templateKey(platform, shape);
      await mkdir(join(folder, key), { recursive: true });
      await writeFile(join(folder, key, 'template.json'), JSON.stringify({ key, ...shape, stateBytes: 5 }));
      await writeFile(join(folder, key, 'state'), 'state');
      await writeFile(join(folder, key, 'memory'), '');
      await truncate(join(folder, key, 'memory'), shape.memMib * 1024 * 1024);
    }
    const cgroups = {} as CgroupTree;
    return { store: new TemplateStore({ cacheDir, platform, jailUid: 1, cgroups, pinned, log }), folder };
  }

  it('keeps what is loaded when its folder is removed', async () => {
    const { store, folder } = await stored([SHAPE]);
    const { statePath, memory } = await store.lease(SHAPE);
    await rm(folder, { recursive: true });
    assert.equal(await readFile(statePath, 'utf8'), 'state');
    assert.equal(await readFile(statePath, 'utf8'), 'state');
    assert.equal((await stat(`/proc/self/fd/${memory.fd}`)).size, SHAPE.memMib * 1024 * 1024);
    await store.close();
  });

  it('keeps the template of the default size loaded, whichever others are asked for', async () => {
    const shapes = [1, 2, 4, 8, 16].map((vcpus) => ({ vcpus, memMib: 128 }));
    const [pinned, second, ...others] = shapes as [MachineSize, MachineSize, ...MachineSize[]];
    const { store, folder } = await stored(shapes, pinned);
    const first = await store.lease(pinned);
    first[Symbol.dispose]();
    for (const shape of [second, ...others]) await store.ensure(shape);
    assert.equal((await store.lease(pinned)).memory, first.memory);
    await rm(folder, { recursive: true });
    assert.deepEqual([await store.has(pinned), await store.has(second)], [true, false]);
    await store.close();
  });

  it('loads one that was evicted while it was being loaded', async () => {
    const { store, folder } = await stored([SHAPE]);
    const template = join(folder, templateKey(platform, SHAPE));
    const load = SealedMemory.load.bind(SealedMemory);
    const evictedOnce = mock.method(SealedMemory, 'load', async (path: string) => {
      if (evictedOnce.mock.callCount() > 0) return await load(path);
      await rename(template, `${template}.evicted`);
      try {
        return await load(path);
      } finally {
        // Another service has made it again when this one looks.
        await rename(`${template}.evicted`, template);
      }
    });
    try {
      using leased = await store.lease(SHAPE);
      assert.equal((await stat(`/proc/self/fd/${leased.memory.fd}`)).size, SHAPE.memMib * 1024 * 1024);
      assert.equal(evictedOnce.mock.callCount(), 2);
    } finally {
      mock.restoreAll();
      await store.close();
    }
  });

  it('unloads none that a start still waits for or uses, however many are loaded meanwhile', async () => {
    const shapes = [1, 2, 3, 4, 5].map((vcpus) => ({ vcpus, memMib: 128 }));
    const { store } = await stored(shapes);
    const [slow, ...quick] = shapes as [MachineSize, ...MachineSize[]];
    const load = SealedMemory.load.bind(SealedMemory);
    const go = Promise.withResolvers<void>();
    mock.method(SealedMemory, 'load', async (path: string) => {
      if (path.includes(templateKey(platform, slow))) await go.promise;
      return await load(path);
    });
    try {
      const waiting = store.lease(slow);
      for (const shape of quick) await store.ensure(shape);
      go.resolve();
      const template = await waiting;
      for (const shape of quick) await store.ensure(shape);
      await new Promise((resolve) => setImmediate(resolve));
      assert.ok(template.memory.fd >= 0, 'its memory is closed');
      template[Symbol.dispose]();
      for (const shape of quick) await store.ensure(shape);
      await until(() => template.memory.fd < 0);
    } finally {
      mock.restoreAll();
      await store.close();
    }
  });

  it('removes what a killed process has left of a template, and nothing of one in the making', async () => {
    const { store, folder } = await stored([SHAPE]);
    const key = templateKey(platform, SHAPE);
    const making = `.m-${key.slice(0, 12)}`;
    for (const name of [making, `.away-${key}-1-1`])
      await mkdir(join(folder, name, 'jail'), { recursive: true });
    const names = async (): Promise<string[]> =>
      (await readdir(folder)).filter((name) => !name.startsWith('.lock'));
    await using lock = await lockFile(join(folder, `.lock-${key}`), { wait: true });
    await store.reclaim();
    assert.deepEqual(await names(), [making, key].toSorted());
    await lock.release();
    await store.reclaim();
    assert.deepEqual(await names(), [key]);
    await store.close();
  });

  it('waits for a template no longer than its caller does, and makes none once it is stopped', async () => {
    const { store, folder } = await stored([]);
    const key = templateKey(platform, SHAPE);
    await mkdir(folder, { recursive: true });
    await using lock = await lockFile(join(folder, `.lock-${key}`), { wait: true });
    const patience = new AbortController();
    const first = store.ensure(SHAPE, patience.signal);
    const second = store.ensure(SHAPE);
    patience.abort(new Error('no longer'));
    await assert.rejects(first, /no longer/);
    store.stop();
    await assert.rejects(second, /cancelled|the service stops/);
    await lock.release();
    await assert.rejects(store.ensure(SHAPE), /the service stops|cancelled/);
    await store.close();
  });

  it('makes a template once for concurrent callers, again when it is damaged, and again when it does not load', async () => {
    using slot = new TestSlot(1);
    const cacheDir = join(dir, 'cache');
    await mkdir(cacheDir);
    // The trial of the accelerator is not what is tested here.
    await cp(join(TEST_CACHE, 'accelerator.json'), join(cacheDir, 'accelerator.json')).catch(() => undefined);
    await using one = await testMachines({ cacheDir });
    await using other = await testMachines({ cacheDir });
    const folder = join(cacheDir, 'templates');

    // Two services that share a cache, and two callers in each.
    const loaded = await Promise.all(
      [one, one, other].map(async ({ machines }) => await machines.templates.lease(SHAPE)),
    );
    const key = loaded[0]?.key ?? '';
    assert.deepEqual(new Set(loaded.map((template) => template.key)), new Set([key]));
    assert.equal(loaded[0]?.memory, loaded[1]?.memory);
    for (const template of loaded) template[Symbol.dispose]();
    assert.deepEqual(
      (await readdir(folder)).filter((name) => !name.startsWith('.lock')),
      [key],
    );
    const memory = await stat(join(folder, key, 'memory'));
    assert.equal(memory.size, SHAPE.memMib * 1024 * 1024);
    assert.ok(memory.blocks * 512 < memory.size / 2, 'pages that the guest never touched take no space');
    assert.deepEqual(await one.cgroups.list(), []);

    // A crash of the machine, or an rm by an operator.
    await truncate(join(folder, key, 'state'), 100);
    assert.equal(await one.machines.templates.has(SHAPE), true, 'what is loaded is not affected');
    await using restarted = await testMachines({ cacheDir });
    assert.equal(await restarted.machines.templates.has(SHAPE), false);

    // Right in size and wrong in content: only loading it shows.
    const { machines } = other;
    const manifest = { key, ...SHAPE, stateBytes: 5000 };
    await writeFile(join(folder, key, 'state'), Buffer.alloc(5000, 0x5a));
    await writeFile(join(folder, key, 'template.json'), JSON.stringify(manifest));
    const rootImagePath = join(dir, 'root');
    await writeFile(rootImagePath, Buffer.alloc(1024 * 1024));
    const disks = { rootImagePath, scratchMib: 8 };
    const boot = async (vmId: string) =>
      await machines.boot({ vmId, slot, shape: SHAPE, disks, cpu: { guaranteed: 1, max: 2 } });
    await assert.rejects(boot('broken'), /could not be restored: .*load of migration failed/);
    await machines.destroy('broken');
    const running = await boot('whole');
    await awaitAgent(running.agentSocketPath, { deadlineMs: 120_000 });
    assert.notEqual((await stat(join(folder, key, 'state'))).size, 5000);
    running.vm.detach();
    await machines.destroy('whole');
  });

  it('makes none of a boot whose kernel has no timer, as after a boot on a host that held it up', async () => {
    await using service = await testMachines();
    const { platform } = service.machines.templates;
    const folder = await mkdtemp(join(dir, 'timer-'));
    // What the kernel does by itself when it has measured a timer that is far too slow. With several CPUs it boots no further.
    const withoutTimer = { ...platform, guestNet: `${platform.guestNet} nolapic_timer` };
    await assert.rejects(
      makeTemplate(withoutTimer, { vcpus: 1, memMib: 128 }, folder, {
        jailUid: 1_899_999_998,
        cgroupProcs: [],
        log,
      }),
      (error) =>
        error instanceof UselessBootError && /this boot is of no use: the kernel/.test(error.message),
    );
  });
});
