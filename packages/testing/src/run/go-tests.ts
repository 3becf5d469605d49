/** Runs the tests of a Go module and counts their results. */
import { execFile, spawn } from 'node:child_process';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { isNightly } from '../repetitions.ts';
import type { Failure, Results } from './results.ts';

const OUTPUT_MAX = 4_000;
/** Of the tests of a package, which are done in half a minute by a machine that does nothing else. */
const TIMEOUT = '15m';
/** A program that says what a module uses of the library that its oldest version of Go does not have; nothing if there is none. */
const LIBRARY_CHECK = path.join(import.meta.dirname, '../../go-library');

interface GoEvent {
  Action: string;
  Package: string;
  Test?: string;
  Output?: string;
}

/**
 * @param go path of the Go command
 * @param module folder of the module
 */
export async function goTests(
  go: string,
  module: string,
  repository: string,
  results: Results,
): Promise<void> {
  const started = performance.now();
  const folder = path.join(repository, module);
  const env = { ...process.env, CGO_ENABLED: '0', GOTOOLCHAIN: 'local', GOFLAGS: '-mod=mod' };
  const child = spawn(go, ['test', '-json', '-timeout', TIMEOUT, './...'], {
    cwd: folder,
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const closed = new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  const counts = { passed: 0, failed: 0 };
  const failures: Failure[] = [];
  const outputs = new Map<string, string>();
  for await (const line of createInterface({ input: child.stdout })) {
    if (!line.startsWith('{')) {
      process.stdout.write(`${line}\n`);
      continue;
    }
    const { Action, Package, Test, Output } = JSON.parse(line) as GoEvent;
    const id = `${Package} ${Test ?? ''}`;
    if (Action === 'output') outputs.set(id, ((outputs.get(id) ?? '') + (Output ?? '')).slice(-OUTPUT_MAX));
    if (Test !== undefined && Action === 'pass') counts.passed++;
    if (Action === 'fail' && (Test !== undefined || counts.failed === 0)) {
      counts.failed++;
      failures.push({
        where: `${Package} `,
        name: Test ?? 'package',
        error: new Error(outputs.get(id)?.trim()),
      });
    }
  }
  const code = await closed;
  if (code !== 0 && counts.failed === 0) {
    counts.failed++;
    failures.push({ where: '', name: 'go test', error: new Error(`ended with ${code}`) });
  }
  const checks = {
    'only the library of the oldest Go': await complaint(go, ['run', '.', folder], LIBRARY_CHECK, env),
    // Nothing here runs on it, and Go's library has to be compiled first.
    ...(isNightly() && {
      'compiles for arm64': await complaint(go, ['vet', './...'], folder, { ...env, GOARCH: 'arm64' }),
    }),
  };
  for (const [name, found] of Object.entries(checks)) {
    if (found === '') counts.passed++;
    else {
      counts.failed++;
      failures.push({ where: '', name, error: new Error(found) });
    }
  }
  results.add(counts, failures);
  results.durations.set(`${module} (go test)`, performance.now() - started);
  process.stdout.write(`\n${module} (go test): ${counts.passed} passed, ${counts.failed} failed\n`);
}

/** What a check prints that fails; empty for one that passes. */
async function complaint(go: string, args: string[], cwd: string, env: NodeJS.ProcessEnv): Promise<string> {
  return await new Promise((resolve) => {
    execFile(go, args, { cwd, env }, (error, stdout, stderr) => {
      resolve(error === null ? '' : (stdout.trim() || stderr.trim() || error.message).slice(0, OUTPUT_MAX));
    });
  });
}
