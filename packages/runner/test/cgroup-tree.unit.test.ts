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
  parseOomEvents,
  treeFiles,
  weightOfAll,
} from '../src/cgroup/cgroup-files.ts';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { OomKills } from '../src/cgroup/oom-kills.ts';

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

describe('kills for memory', () => {
  const V1 = 'oom_kill_disable 0\nunder_oom 0\noom_kill ';
  const events = (oom: number, kills: number): string =>
    `low 0\nhigh 0\nmax 9\noom ${oom}\noom_kill ${kills}\noom_group_kill ${kills}\n`;
  /** Cgroups of which each has the events that a test writes down. */
  const files = new Map<string, string>();
  const oomKills = (): OomKills =>
    new OomKills({
      oomEvents: (name) => {
        const text = files.get(name);
        return text === undefined ? undefined : parseOomEvents(text);
      },
    });

  it('are explained by the limit that was used up, once, and counted', () => {
    const kills = oomKills();
    for (const [version, before, after, limit] of [
      ['2, its own', events(0, 0), events(1, 1), 'sandbox'],
      ['2, its own, and some were killed before', events(3, 3), events(4, 5), 'sandbox'],
      ['2, one above', events(0, 0), events(0, 1), 'host'],
      ['2, one above, after its own', events(2, 2), events(2, 3), 'host'],
      ['1, which does not say', `${V1}0\n`, `${V1}1\n`, 'unknown'],
    ] as const) {
      const former = { ...kills.counts };
      files.set('vm', before);
      const explain = kills.watch('vm');
      assert.equal(explain(), undefined, version);
      files.set('vm', after);
      const reason = explain();
      assert.match(reason ?? '', /^the micro-VM was ended because /, version);
      assert.equal(/used up its memory limit/.test(reason ?? ''), limit !== 'host', version);
      files.delete('vm');
      assert.equal(explain(), reason, version);
      assert.deepEqual(kills.counts, { ...former, [limit]: former[limit] + 1 }, version);
    }
  });

  it('are none of a VMM that was killed otherwise, nor on a kernel that counts none', () => {
    const kills = oomKills();
    for (const text of [events(0, 0), events(7, 3), `${V1}2\n`, 'oom_kill_disable 0\nunder_oom 0\n']) {
      files.set('vm', text);
      assert.equal(kills.watch('vm')(), undefined);
    }
    files.delete('vm');
    assert.equal(kills.watch('vm')(), undefined);
    assert.deepEqual(kills.counts, { sandbox: 0, host: 0, unknown: 0 });
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
      const kills = new OomKills(tree);
      const one = once(await hold('one'), 'exit');
      const explained = names.map((name) => kills.watch(name));
      while ((tree.usage('one')?.memoryBytes ?? 0) < 30 << 20)
        await new Promise((resolve) => setTimeout(resolve, 5));
      const other = once(await hold('other'), 'exit');
      assert.deepEqual(await Promise.race([one, other]), [null, 'SIGKILL']);
      // Neither has reached a limit of its own.
      const reasons = explained.flatMap((explain) => explain() ?? []);
      assert.equal(reasons.length, 1);
      assert.match(reasons[0] ?? '', /its host had no memory left/);
      const limit = tree.layout.version === 2 ? 'host' : 'unknown';
      assert.deepEqual(kills.counts, { sandbox: 0, host: 0, unknown: 0, [limit]: 1 });
    } finally {
      for (const name of names) await tree.destroy(name);
      await tree.close();
    }
  });

  it('kill what takes more memory than it may', async () => {
    const tree = await CgroupTree.open(`/test/${randomBytes(8).toString('hex')}`);
    try {
      const procs = await tree.create('hog', { ...LIMITS, memoryMib: 32 });
      await tree.create('neighbour', LIMITS);
      const kills = new OomKills(tree);
      const [explain, ofNeighbour] = [kills.watch('hog'), kills.watch('neighbour')];
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
      assert.equal(explain(), undefined);
      hog.stdin.write('go');
      assert.equal(await exited, 'SIGKILL');
      assert.match(explain() ?? '', /used up its memory limit/);
      assert.equal(ofNeighbour(), undefined);
      const limit = tree.layout.version === 2 ? 'sandbox' : 'unknown';
      assert.deepEqual(kills.counts, { sandbox: 0, host: 0, unknown: 0, [limit]: 1 });
    } finally {
      await tree.destroy('hog');
      await tree.destroy('neighbour');
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
