/**
 * `npm test [-- pattern …]`: set-up, then every check and test. Patterns choose test files by a part of their
 * path. Ends with `N passed, N failed` alone on a line.
 */
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { findCommand, say } from './command.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

/** Test files at the same time. More would only make micro-VMs wait for each other. */
const CONCURRENCY = 2;
/** No single test file may hang the run. */
const FILE_TIMEOUT_MS = 10 * 60_000;

/** In the environment of every process that a test starts, so that none of them outlives the run unseen. */
const RUN = `RELEAP_TEST_RUN=${randomUUID()}`;

/** Kills what tests have left running, and names it: each is a fault of some test or of what it tests. */
async function killLeftovers() {
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    const environ = await readFile(`/proc/${name}/environ`, 'latin1').catch(() => '');
    if (!environ.split('\0').includes(RUN)) continue;
    const command = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    say(`left over and killed: ${name} ${command.replaceAll('\0', ' ').slice(0, 200)}`);
    try {
      process.kill(Number(name), 'SIGKILL');
    } catch {
      // It has ended meanwhile.
    }
  }
}

/** Runs a command with its output shown line by line; `onLine` may keep a line for itself by answering true. */
async function show(file, args, { cwd = REPO, env = {}, onLine = () => false } = {}) {
  const child = spawn(file, args, {
    cwd,
    env: { ...process.env, ...env, RELEAP_TEST_RUN: RUN.split('=')[1] },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: child.stdout });
  lines.on('line', (line) => {
    if (!onLine(line)) process.stdout.write(`${line}\n`);
  });
  const code = await new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  return code === 0;
}

async function testFiles(patterns) {
  const packages = (await readdir(path.join(REPO, 'packages'))).map((name) => `packages/${name}/test`);
  const files = [];
  for (const folder of [...packages, 'setup/test', 'test']) {
    const entries = await readdir(path.join(REPO, folder), { recursive: true }).catch(() => []);
    files.push(
      ...entries.filter((file) => /\.test\.(ts|mjs)$/.test(file)).map((file) => path.join(folder, file)),
    );
  }
  return files
    .sort((a, b) => (a < b ? -1 : 1))
    .filter((file) => patterns.length === 0 || patterns.some((pattern) => file.includes(pattern)));
}

const total = { passed: 0, failed: 0 };

/** A check that either holds or not counts as one test. */
async function check(name, run) {
  const ok = await run();
  total[ok ? 'passed' : 'failed']++;
  say(`${ok ? 'ok    ' : 'FAILED'} ${name}`);
}

async function typescriptTests(files) {
  if (files.length === 0) return;
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-failures-'));
  const summary = path.join(folder, 'failures');
  const counted = { pass: 0, fail: 0, cancelled: 0 };
  const args = [
    '--test',
    `--test-concurrency=${CONCURRENCY}`,
    `--test-timeout=${FILE_TIMEOUT_MS}`,
    '--test-reporter=spec',
    '--test-reporter-destination=stdout',
    `--test-reporter=${path.join(import.meta.dirname, 'failures.mjs')}`,
    `--test-reporter-destination=${summary}`,
  ];
  const ok = await show(NODE, [...args, ...files], {
    env: { NODE_NO_WARNINGS: '1' },
    onLine: (line) => {
      const found = /^\S* ?(pass|fail|cancelled) (\d+)$/.exec(line);
      if (found) counted[found[1]] = Number(found[2]);
      return false;
    },
  });
  // Once more, short and last: what ends a long run says what failed and why.
  process.stdout.write(await readFile(summary, 'utf8').catch(() => ''));
  await rm(folder, { recursive: true });
  total.passed += counted.pass;
  // A run that broke before it counted anything must not look like one without failures.
  total.failed += Math.max(counted.fail + counted.cancelled, ok ? 0 : 1);
}

async function goTests(module) {
  const go = await findCommand('go');
  if (go === undefined) {
    total.failed++;
    return;
  }
  const ok = await show(go, ['test', '-json', './...'], {
    cwd: path.join(REPO, module),
    env: { CGO_ENABLED: '0', GOTOOLCHAIN: 'local', GOFLAGS: '-mod=mod' },
    onLine: (line) => {
      const event = JSON.parse(line);
      if (event.Test === undefined) {
        if (event.Action === 'output' && /FAIL|panic/.test(event.Output)) process.stdout.write(event.Output);
        return true;
      }
      if (event.Action === 'pass') total.passed++;
      if (event.Action === 'fail') {
        total.failed++;
        process.stdout.write(`FAILED ${event.Package} ${event.Test}\n`);
      }
      if (event.Action === 'output' && /^\s+\S+_test\.go:\d+:/.test(event.Output))
        process.stdout.write(event.Output);
      return true;
    },
  });
  if (!ok && total.failed === 0) total.failed++;
}

async function runTests() {
  const patterns = process.argv.slice(2);
  await setUp({ forTests: true });
  const bin = (name) => path.join(REPO, 'node_modules/.bin', name);
  const env = { PATH: `${path.dirname(NODE)}${path.delimiter}${process.env.PATH}` };
  if (patterns.length === 0) {
    await check('types', () => show(bin('tsc'), ['-b'], { env }));
    await check('lint', () => show(bin('oxlint'), ['--type-aware', '--deny-warnings'], { env }));
    await check('format', () => show(bin('biome'), ['format'], { env }));
    await goTests('guest');
    await goTests('host');
  }
  await typescriptTests(await testFiles(patterns));
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => killLeftovers().finally(() => process.exit(130)));
}
try {
  await main(runTests);
} finally {
  await killLeftovers();
  // A run that did not get as far as a test has not passed.
  if (process.exitCode === 1 || total.passed === 0) total.failed = Math.max(total.failed, 1);
  if (total.failed > 0) process.exitCode = 1;
  process.stdout.write(`\n${total.passed} passed, ${total.failed} failed\n`);
}
