import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, it, mock } from 'node:test';
import {
  cpuShare,
  detectLayout,
  limitFiles,
  memoryOfAll,
  treeFiles,
  weightOfAll,
} from '../src/cgroup/cgroup-files.ts';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';

const LIMITS = { cpu: 0.5, cpuMax: 2, memoryMib: 256, pids: 100 };

describe('finding the cgroup hierarchies', () => {
  it('takes version 2 where it has the controllers', async () => {
    assert.deepEqual(await detectLayout('cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n'), {
      version: 2,
      root: '/sys/fs/cgroup',
    });
  });

  it('takes version 1 where both are mounted, also when controllers share a folder with a space in its name', async () => {
    const mounts = [
      'cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0',
      String.raw`cgroup /a\040b cgroup rw,cpu,cpuacct 0 0`,
      'cgroup /m cgroup rw,memory 0 0',
    ].join('\n');
    assert.deepEqual(await detectLayout(mounts), {
      version: 1,
      roots: { cpu: '/a b', cpuacct: '/a b', memory: '/m' },
    });
  });

  it('says what is missing where there is none', async () => {
    await assert.rejects(detectLayout('proc /proc proc rw 0 0\n'), /no cgroup hierarchy/);
  });
});

describe('limits', () => {
  const files = (version: 1 | 2, limits = LIMITS) =>
    Object.fromEntries(limitFiles(version, limits).map(({ file, value }) => [file, value]));

  it('become weight, quota, memory and pids of version 2', () => {
    assert.deepEqual(files(2), {
      'cpu.weight': '50',
      'cpu.max': '40000 20000',
      'cpu.max.burst': '40000',
      'memory.max': String(256 * 1024 * 1024),
      'memory.swap.max': '0',
      'memory.oom.group': '1',
      'pids.max': '100',
    });
  });

  it('become shares, quota, memory and pids of version 1', () => {
    assert.deepEqual(files(1), {
      'cpu.shares': '512',
      'cpu.cfs_period_us': '20000',
      'cpu.cfs_quota_us': '40000',
      'cpu.cfs_burst_us': '40000',
      'memory.limit_in_bytes': String(256 * 1024 * 1024),
      'pids.max': '100',
    });
  });

  it('are lowered in an order that the kernel accepts: a quota is never below its burst', () => {
    for (const [version, burst, quota] of [
      [1, 'cpu.cfs_burst_us', 'cpu.cfs_quota_us'],
      [2, 'cpu.max.burst', 'cpu.max'],
    ] as const) {
      const written = limitFiles(version, LIMITS).filter(({ file }) =>
        [burst, quota].some((name) => name === file),
      );
      assert.deepEqual(
        written.map(({ file }) => file),
        [burst, quota, burst],
      );
      assert.equal(written[0]?.value, '0');
    }
  });

  it('of disks are a line of io.max each, and the share of a tree is a weight', () => {
    const lines = ['8:0 rbps=max riops=100 wbps=max wiops=100', '8:16 rbps=max riops=100 wbps=max wiops=100'];
    const files = limitFiles(2, { ...LIMITS, ioMax: lines });
    assert.deepEqual(
      files.filter(({ file }) => file === 'io.max').map(({ value }) => value),
      lines,
    );
    assert.deepEqual(treeFiles(2, { cores: 1, ioWeight: 10, ioMax: lines }).at(-1), {
      controller: 'io',
      file: 'io.weight',
      value: '10',
    });
  });

  it('stay within what the kernel accepts', () => {
    assert.equal(files(2, { ...LIMITS, cpu: 0.001 })['cpu.weight'], '1');
    assert.equal(files(2, { ...LIMITS, cpu: 500 })['cpu.weight'], '10000');
    assert.equal(files(1, { ...LIMITS, cpu: 0.0001 })['cpu.shares'], '2');
    assert.equal(files(2, { ...LIMITS, cpuMax: 0.001 })['cpu.max'], '1000 20000');
  });
});

describe('the weight of all micro-VMs together', () => {
  it('leaves the service an eighth of the machine, and one core at least', () => {
    for (const [cores, least] of [
      [1, 0.5],
      [2, 1],
      [4, 1],
      [8, 1],
      [64, 8],
    ] as const) {
      const weight = weightOfAll(cores);
      assert.ok(Math.abs(cores / (1 + weight) - least) < 0.01, `${cores} cores: ${weight}`);
    }
  });
});

describe('the memory of all micro-VMs together', () => {
  it('leaves the service 1 GiB, and of a small machine a quarter', () => {
    for (const [machine, all] of [
      [2048, 1536],
      [4096, 3072],
      [65_536, 64_512],
    ] as const)
      assert.equal(memoryOfAll(machine), all);
  });

  it('is a limit of their parent, which does not swap either', () => {
    const files = (version: 1 | 2, memoryMib?: number): string[] =>
      treeFiles(version, { cores: 2, ...(memoryMib !== undefined && { memoryMib }) }).map(
        ({ file, value }) => `${file} ${value}`,
      );
    assert.deepEqual(files(2, 1), ['cpu.weight 200', 'memory.max 1048576', 'memory.swap.max 0']);
    assert.deepEqual(files(1, 1), ['cpu.shares 2048', 'memory.limit_in_bytes 1048576']);
    assert.deepEqual(files(2), ['cpu.weight 200']);
  });
});

describe("a service's cgroups", () => {
  it('hold a process to its limits, count what it uses, and take it along when they go', async () => {
    const tree = await CgroupTree.open(`/test/${randomBytes(8).toString('hex')}`);
    try {
      const procs = await tree.create('vm-a', LIMITS);
      const ofAll = join(
        dirname(dirname(procs[0] ?? '')),
        tree.layout.version === 2 ? 'cpu.weight' : 'cpu.shares',
      );
      const { value } = cpuShare(tree.layout.version, weightOfAll(cpus().length));
      assert.equal((await readFile(ofAll, 'utf8')).trim(), value, 'the service keeps a share of its own');
      // Repeatable, and the way to change limits.
      await tree.create('vm-a', { ...LIMITS, cpuMax: 1, memoryMib: 64 });
      await tree.create('vm-a', { ...LIMITS, cpuMax: 4, memoryMib: 64 });
      const child = spawn(
        'sh',
        [
          '-c',
          `${procs.map((_file, at) => `echo $$ > "$${at + 1}";`).join(' ')} i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 60`,
          'sh',
          ...procs,
        ],
        { stdio: 'ignore' },
      );
      const exited = new Promise((resolve) => child.once('exit', (_code, signal) => resolve(signal)));
      for (let used = 0; used === 0; ) {
        used = tree.usage('vm-a')?.cpuMicros ?? 0;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      assert.ok((await tree.processes('vm-a')).includes(child.pid ?? 0));
      assert.deepEqual(await tree.list(), ['vm-a']);
      await tree.destroy('vm-a');
      assert.equal(await exited, 'SIGKILL');
      assert.deepEqual(await tree.list(), []);
      assert.equal(tree.usage('vm-a'), undefined);
      await tree.destroy('vm-a');
    } finally {
      await tree.destroy('vm-a');
      await tree.close();
    }
  });

  it('go with what is in them, however long the machine stalls meanwhile', async () => {
    const tree = await CgroupTree.open(`/test/${randomBytes(8).toString('hex')}`);
    let now = 0;
    const clock = mock.method(performance, 'now', () => (now += 60_000));
    try {
      const procs = await tree.create('vm-b', LIMITS);
      const child = spawn('sleep', ['600'], { stdio: 'ignore' });
      const exited = new Promise((resolve) => child.once('exit', (_code, signal) => resolve(signal)));
      for (const file of procs) await writeFile(file, String(child.pid));
      await tree.destroy('vm-b');
      assert.equal(await exited, 'SIGKILL');
      assert.deepEqual(await tree.list(), []);
    } finally {
      clock.mock.restore();
      await tree.destroy('vm-b');
      await tree.close();
    }
  });

  it('have no more memory together than their parent, whatever each may have', async () => {
    const tree = await CgroupTree.open(`/test/${randomBytes(8).toString('hex')}`, {
      cores: 1,
      memoryMib: 64,
    });
    const names = ['one', 'other'] as const;
    /** Holds all it is given, as there are no lines in it. */
    const hold = async (name: string): Promise<ChildProcess> => {
      const procs = await tree.create(name, { ...LIMITS, memoryMib: 512 });
      const child = spawn('tail', { stdio: ['pipe', 'ignore', 'ignore'] });
      for (const file of procs) await writeFile(file, String(child.pid));
      child.stdin.on('error', () => undefined);
      child.stdin.write(Buffer.alloc(40 << 20));
      return child;
    };
    try {
      const one = once(await hold('one'), 'exit');
      while ((tree.usage('one')?.memoryBytes ?? 0) < 30 << 20)
        await new Promise((resolve) => setTimeout(resolve, 5));
      const other = once(await hold('other'), 'exit');
      assert.deepEqual(await Promise.race([one, other]), [null, 'SIGKILL']);
    } finally {
      for (const name of names) await tree.destroy(name);
      await tree.close();
    }
  });

  it('kill what takes more memory than it may', async () => {
    const tree = await CgroupTree.open(`/test/${randomBytes(8).toString('hex')}`);
    try {
      const procs = await tree.create('hog', { ...LIMITS, memoryMib: 32 });
      const hog = spawn(
        process.execPath,
        ['-e', "process.stdin.once('data', () => Buffer.alloc(200 << 20, 1))"],
        {
          stdio: ['pipe', 'ignore', 'ignore'],
        },
      );
      const exited = new Promise((resolve) => hog.once('exit', (_code, signal) => resolve(signal)));
      for (const file of procs) await writeFile(file, String(hog.pid));
      assert.match(await readFile(procs[0] ?? '', 'utf8'), new RegExp(`^${hog.pid}$`, 'm'));
      hog.stdin.on('error', () => undefined);
      hog.stdin.write('go');
      assert.equal(await exited, 'SIGKILL');
    } finally {
      await tree.destroy('hog');
      await tree.close();
    }
  });

  it('have names that cannot climb', async () => {
    const tree = await CgroupTree.open(`/test/${randomBytes(8).toString('hex')}`);
    try {
      for (const name of ['..', '.', 'a/b', '', '../x']) {
        await assert.rejects(tree.create(name, LIMITS), /not a cgroup name/);
      }
    } finally {
      await tree.close();
    }
  });
});
