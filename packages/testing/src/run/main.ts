/**
 * Every check and test of the repository, after set-up: `node packages/testing/src/run/main.ts [--tier TIER] [--cpu] [--jobs N] [PATTERN …]`,
 * or `--kvm [--always]`.
 * Ends with `N passed, N failed` alone on a line, and with 1 if anything failed.
 */
import { writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { POSTGRES_VARIABLE, startMigratedPostgres } from '../postgres-server.ts';
import { isNightly } from '../repetitions.ts';
import { runChecks } from './checks.ts';
import { CpuTime } from './cpu-time.ts';
import { chooseFiles, listTestFiles, rememberDurations, type TestFile } from './files.ts';
import { goTests } from './go-tests.ts';
import { KVM_MACHINE_FILE, KVM_VARIABLE } from './kvm-files.ts';
import { reportFile } from './node-tests.ts';
import { readOptions, UsageError, type RunOptions } from './options.ts';
import { runPool } from './pool.ts';
import { Results } from './results.ts';
import { SharedService } from './run-service.ts';
import { killProcessesOf, removeDeadRuns, removeRun, RUN_VARIABLE } from './remove-leftovers.ts';
import { makeRunFolder, RESULTS_FILE } from './run-folder.ts';
import { kernelObjects } from './run-leftovers.ts';
import type { Tier } from './tiers.ts';

const REPOSITORY = path.resolve(import.meta.dirname, '../../../..');
/** No single test file may hang the run. The longest takes 7 minutes, and 6 times that on a slow and busy machine. */
const FILE_TIMEOUT_MS = (isNightly() ? 120 : 45) * 60_000;
const CORES = Math.min(Math.max(availableParallelism(), 2), 8);
/** That boots a machine whose processor is emulated, and runs test files in it. */
const MACHINE_TIMEOUT_MS = 8 * 60 * 60_000;
/** Test files at the same time. Each waits now and then, for a restart or a timer, so there is one more than cores of a tier. */
const LIMITS = {
  all: CORES + 2,
  of: { unit: CORES, integration: CORES + 1, e2e: CORES + 1, go: 1, shared: 1 },
};
const GO_MODULES = ['guest', 'guest/ssh', 'guest/toolbox', 'host', 'packages/testing/go-library'];

const results = new Results();
const shared = new SharedService();
let interrupted = false;
let cpu: CpuTime | undefined;

async function testAll(options: RunOptions, go: string | undefined): Promise<void> {
  if (options.cpu) cpu = new CpuTime(await listTestFiles(REPOSITORY));
  const whole = options.patterns.length === 0;
  if (whole && options.tiers === undefined) await runChecks(REPOSITORY, results);
  if (options.kvm !== false) process.env[KVM_VARIABLE] = options.kvm === true ? '1' : options.kvm;
  const files = await chooseFiles(REPOSITORY, options);
  const machine = files.find((file) => file.path === KVM_MACHINE_FILE);
  const jobs: Job[] = files
    .filter((file) => file !== machine)
    .map((file) => ({
      classes: file.shared ? [file.tier, 'shared'] : [file.tier],
      file,
    }));
  // The Go compiler takes both cores for a while: first, before guests are there to be starved.
  if (whole && (options.tiers?.has('unit') ?? true))
    jobs.unshift(...GO_MODULES.map((module) => ({ classes: ['go' as const], module })));
  await using cleanup = new AsyncDisposableStack();
  if (files.some(({ tier }) => tier !== 'unit')) {
    const postgres = cleanup.use(await startMigratedPostgres());
    process.env[POSTGRES_VARIABLE] = postgres.url('postgres');
  }
  await runPool(jobs, { ...LIMITS, all: options.jobs ?? LIMITS.all }, async (job) => {
    if (interrupted) return;
    if ('file' in job) {
      const { file } = job;
      if (file.shared) await shared.start();
      await reportFile(file, { repository: REPOSITORY, timeoutMs: FILE_TIMEOUT_MS, results });
    } else if (go !== undefined) await goTests(go, job.module, REPOSITORY, results);
    else
      results.add({ passed: 0, failed: 1 }, [{ where: '', name: 'go', error: new Error('no Go compiler') }]);
  });
  await shared.stop(results);
  if (machine !== undefined && !interrupted) {
    await writeFile(path.join(folder.path, RESULTS_FILE), JSON.stringify(Object.fromEntries(results.files)));
    const show = (text: string): void => void process.stdout.write(text);
    await reportFile(machine, { repository: REPOSITORY, timeoutMs: MACHINE_TIMEOUT_MS, results, show });
  }
  const measured = files.flatMap(({ path }) => {
    const ms = results.durations.get(path);
    return ms === undefined ? [] : [[path, Math.round(ms)] as const];
  });
  await rememberDurations(REPOSITORY, Object.fromEntries(measured));
}

type Job =
  | { classes: readonly (Tier | 'shared')[]; file: TestFile }
  | { classes: readonly 'go'[]; module: string };

async function nameLeftovers(before: ReadonlySet<string>): Promise<void> {
  for (const one of await killProcessesOf(folder.owner))
    process.stdout.write(`left over and killed: ${one}\n`);
  for (const one of await kernelObjects()) if (!before.has(one)) process.stdout.write(`left over: ${one}\n`);
}

await removeDeadRuns();
const folder = await makeRunFolder();
// Services have their homes below it: by their names a later run finds what a killed one leaves in the kernel.
process.env['TMPDIR'] = folder.path;
process.env[RUN_VARIABLE] = folder.owner;
process.env['NODE_NO_WARNINGS'] = '1';
// Hundreds of processes load the same modules: each is stripped of its types and compiled once a run.
process.env['NODE_COMPILE_CACHE'] ??= path.join(folder.path, 'compiled');
const before = await kernelObjects();
const interrupt = (): void => {
  if (interrupted) return;
  interrupted = true;
  process.stdout.write('\ninterrupted: what the tests have started is ended and removed\n');
  void removeRun(folder).finally(() => process.exit(130));
};
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
// The parent process was killed.
process.on('disconnect', interrupt);
try {
  await testAll(readOptions(process.argv.slice(2)), process.env['RELEAP_TEST_GO'] || undefined);
} catch (error) {
  results.add({ passed: 0, failed: 1 });
  process.stdout.write(`${error instanceof UsageError ? error.message : String((error as Error).stack)}\n`);
}
if (!interrupted) {
  await nameLeftovers(before);
  await removeRun(folder);
  cpu?.stop();
  process.stdout.write(results.durationReport());
  process.stdout.write(cpu?.report(REPOSITORY) ?? '');
  process.stdout.write(results.failureReport());
  // A run that did not get as far as a test has not passed.
  if (results.passed === 0) results.failed = Math.max(results.failed, 1);
  process.stdout.write(`\n${results.passed} passed, ${results.failed} failed\n`);
  process.exitCode = results.failed > 0 ? 1 : 0;
  // The channel to the parent would keep the process alive.
  process.off('disconnect', interrupt);
  if (process.connected) process.disconnect();
}
