import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { access, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { promisify } from 'node:util';
import { until } from '@releap/testing/eventually';
import { CpuTime } from '@releap/testing/run/cpu-time';
import { inOrder, type TestFile } from '@releap/testing/run/files';
import { KVM_FILES, KVM_MACHINE_FILE } from '@releap/testing/run/kvm-files';
import { runFile } from '@releap/testing/run/node-tests';
import { readOptions } from '@releap/testing/run/options';
import { runPool } from '@releap/testing/run/pool';
import { Results } from '@releap/testing/run/results';

const REPOSITORY = path.resolve(import.meta.dirname, '../../..');

describe('the arguments of npm test', () => {
  test('patterns and tiers combine', () => {
    const { tiers, patterns } = readOptions(['--tier', 'unit,e2e', 'packages/cli', '--tier=unit']);
    assert.deepEqual([tiers, patterns], [new Set(['unit', 'e2e']), ['packages/cli']]);
  });

  test('without any, all tiers and files are chosen', () => {
    const options = { tiers: undefined, patterns: [], cpu: false, jobs: undefined, kvm: false };
    assert.deepEqual(readOptions([]), options);
    assert.equal(readOptions(['--cpu', 'test/cli']).cpu, true);
    assert.equal(readOptions(['--jobs', '3']).jobs, 3);
  });

  test('the files that are for KVM, and the machine that they run in, are a choice of their own', async () => {
    const { kvm, patterns } = readOptions(['--kvm']);
    assert.equal(kvm, true);
    const files = [...KVM_FILES, KVM_MACHINE_FILE];
    assert.deepEqual(
      patterns,
      files.map((file) => `./${file}`),
    );
    for (const file of files) await access(path.join(REPOSITORY, file));
    assert.equal(readOptions(['--kvm', '--always']).kvm, 'always');
  });

  test('an unknown tier or option is refused with what is allowed', () => {
    assert.throws(() => readOptions(['--tier', 'slow']), /no tier 'slow': choose of unit, integration, e2e/);
    assert.throws(() => readOptions(['--watch']), /--watch/);
    assert.throws(() => readOptions(['--jobs', '0']), /--jobs 0: give a number from 1/);
  });
});

describe('the order of files', () => {
  test('has the slowest first, and those of the shared service as early as they take together', () => {
    const file = (name: string, seconds: number, shared = false): TestFile => ({
      path: name,
      tier: 'e2e',
      shared,
      expectedMs: seconds * 1_000,
    });
    const files = [
      file('shared short', 20, true),
      file('short', 10),
      file('long', 70),
      file('shared long', 60, true),
      file('middle', 50),
    ];
    assert.deepEqual(
      inOrder(files).map(({ path: name }) => name),
      ['shared long', 'long', 'middle', 'shared short', 'short'],
    );
  });
});

describe('processor time', () => {
  test('of children, seen while they run and not, belongs to the file that started them', async () => {
    const repository = await mkdtemp(path.join(tmpdir(), 'releap-cpu-'));
    // To ask takes the system's time rather than the user's.
    const used = 'const used = () => process.cpuUsage().user + process.cpuUsage().system;';
    const work = `${used} const end = used() + 400_000; while (used() < end);`;
    // Both stay until they were seen.
    const stay = `process.stdin.resume();`;
    const long = path.join(repository, 'long.test.mjs');
    await writeFile(long, `${work} ${stay}`);
    const short = path.join(repository, 'short.test.mjs');
    await writeFile(
      short,
      `import { spawnSync } from 'node:child_process';
      for (let i = 0; i < 3; i++) spawnSync(process.execPath, ['-e', ${JSON.stringify(work)}]);
      ${stay}`,
    );
    const cpu = new CpuTime([long, short]);
    const running = [long, short].map((file) => promisify(execFile)(process.execPath, [file]));
    await until(() => [long, short].every((file) => cpu.report(repository).includes(file)));
    for (const { child } of running) child.stdin?.end();
    await Promise.all(running);
    cpu.stop();
    assert.match(cpu.report(repository), /processor time: \d/);
    const written = await readFile(path.join(repository, 'build/test-cpu.json'), 'utf8');
    await rm(repository, { recursive: true });
    const byFile = JSON.parse(written) as Record<string, Record<string, number>>;
    const total = (file: string): number => Object.values(byFile[file] ?? {}).reduce((a, b) => a + b, 0);
    assert.ok(total(long) >= 0.35, written);
    assert.ok(total(short) >= 1.1, written);
  });
});

describe('the pool', () => {
  test('starts jobs in order and respects both limits', async () => {
    const order: string[] = [];
    const most = { all: 0, guest: 0 };
    const running = { all: 0, guest: 0 };
    const jobs = ['g1', 'g2', 'g3', 'o1', 'o2', 'g4', 'o3'].map((name) => ({
      name,
      classes: [name.startsWith('g') ? ('guest' as const) : ('other' as const)],
    }));
    await runPool(jobs, { all: 3, of: { guest: 2, other: 2 } }, async (job) => {
      order.push(job.name);
      running.all++;
      const guest = job.classes.includes('guest');
      if (guest) running.guest++;
      most.all = Math.max(most.all, running.all);
      most.guest = Math.max(most.guest, running.guest);
      for (let turns = 0; turns < 5; turns++) await turn();
      running.all--;
      if (guest) running.guest--;
    });
    assert.deepEqual(most, { all: 3, guest: 2 });
    assert.deepEqual(order.slice(0, 3), ['g1', 'g2', 'o1']);
    assert.deepEqual(order.toSorted(), jobs.map(({ name }) => name).toSorted());
  });
});

describe('a test file', () => {
  let folder: string;
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'releap-run-'));
  });
  after(() => rm(folder, { recursive: true, force: true }));

  const run = async (text: string, timeoutMs = 60_000, show?: (text: string) => void) => {
    // node:test runs nothing from within a test: it takes that for a mistake.
    delete process.env['NODE_TEST_CONTEXT'];
    await writeFile(
      path.join(folder, 'one.test.mjs'),
      `import { describe, test } from 'node:test';\n${text}`,
    );
    return await runFile('one.test.mjs', folder, timeoutMs, show);
  };

  test('is counted by its tests, suites and skipped ones left out', async () => {
    const result = await run(
      `describe('s', () => { test('a', () => {}); test('b', () => { throw new Error('no b') }); test.skip('c') })`,
    );
    assert.deepEqual([result.passed, result.failed], [1, 1]);
    assert.deepEqual(
      result.failures.map(({ name, where }) => [name, where]),
      [['b', 'one.test.mjs:2 ']],
    );
    assert.match(result.output, /✔ a/);
    assert.doesNotMatch(result.output, /duration_ms/);
  });

  test('is shown while it runs, to who wants that', async () => {
    const go = path.join(folder, 'go');
    const shown: string[] = [];
    const show = (text: string): void => {
      shown.push(text);
      if (text.includes('first line')) void writeFile(go, '');
    };
    // It ends once its first line was shown.
    const result = await run(
      `import { existsSync } from 'node:fs';
      test('a', async () => {
        console.log('first line');
        while (!existsSync(${JSON.stringify(go)})) await new Promise((resolve) => setTimeout(resolve, 10));
      })`,
      60_000,
      show,
    );
    assert.deepEqual([result.passed, result.failed, result.output], [1, 0, '']);
    assert.match(shown.join(''), /✔ a/);
  });

  test('that does not load has failed', async () => {
    const result = await run(`throw new Error('does not load')`);
    assert.deepEqual([result.passed, result.failed, result.failures.length], [0, 1, 1]);
  });

  test('that hangs is ended and has failed', async () => {
    const result = await run(`test('hangs', () => new Promise(() => setInterval(() => {}, 1000)))`, 1_000);
    assert.equal(result.passed, 0);
    assert.ok(result.failed >= 1);
  });

  test('a failure is told with the cause of its error, shortened', () => {
    const results = new Results();
    const error = new Error('outer', { cause: new Error(`inner\n${'x\n'.repeat(50)}`) });
    results.add({ passed: 0, failed: 1 }, [{ where: 'a.test.ts:1 ', name: 'it', error }]);
    assert.match(results.failureReport(), /FAILED.* a\.test\.ts:1 it\n {4}outer\n {4}caused by: inner\n/);
    assert.ok(results.failureReport().split('\n').length < 20);
  });
});
