/** Types, lint and format: each counts as one test. */
import { spawn } from 'node:child_process';
import path from 'node:path';
import type { Results } from './results.ts';

const CHECKS: readonly (readonly [string, string, readonly string[]])[] = [
  // Each of its threads checks the libraries by itself: one takes half the processor time of all.
  ['types', 'tsc', ['-b', '--singleThreaded']],
  ['lint', 'oxlint', ['--type-aware', '--deny-warnings']],
  ['format', 'biome', ['format']],
];

/** Runs all checks at the same time, and shows the output of those that fail. */
export async function runChecks(repository: string, results: Results): Promise<void> {
  await Promise.all(
    CHECKS.map(async ([name, tool, args]) => {
      const started = performance.now();
      const { code, output } = await capture(
        path.join(repository, 'node_modules/.bin', tool),
        args,
        repository,
      );
      const ok = code === 0;
      results.add(
        { passed: ok ? 1 : 0, failed: ok ? 0 : 1 },
        ok ? [] : [{ where: '', name, error: new Error(output.trim().slice(0, 2_000)) }],
      );
      results.durations.set(name, performance.now() - started);
      process.stdout.write(`${ok ? 'ok    ' : 'FAILED'} ${name}\n${ok ? '' : output}`);
    }),
  );
}

async function capture(
  file: string,
  args: readonly string[],
  cwd: string,
): Promise<{ code: number | null; output: string }> {
  const child = spawn(file, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (output += chunk.toString('utf8')));
  return await new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: -1, output: error.message }));
    child.once('close', (code) => resolve({ code, output }));
  });
}
