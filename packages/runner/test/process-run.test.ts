import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mock, test } from 'node:test';
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import { ProcessError, run, runToExit } from '../src/process/index.ts';
import type { ProcessFailure } from '../src/process/process-error.ts';
import { identifyProcess, isAlive, signalProcess } from '../src/vmm/process-identity.ts';
import type { ProcessIdentity } from '../src/vmm/process-identity.ts';

const MODULE = new URL('../src/process/index.ts', import.meta.url).href;
const DEADLINE_MS = 2_000;

async function untilGone(process: ProcessIdentity): Promise<void> {
  while (isAlive(process)) await sleep(10);
}

function hasEnded(pid: number): boolean {
  try {
    return !isAlive(identifyProcess(pid));
  } catch {
    return true;
  }
}

/**
 * Runs a shell command that prints the pids of a process and of its shell.
 * @param isTime whether the deadline may be over, of the shell
 */
async function untilDeadline(
  command: string,
  isTime: (shell: number) => boolean,
): Promise<{ error: unknown; printed: ProcessIdentity }> {
  const line = Promise.withResolvers<string>();
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    const running = runToExit('sh', ['-c', command], { deadlineMs: DEADLINE_MS, onLine: line.resolve });
    running.catch(line.reject);
    const [pid = 0, shell = 0] = (await line.promise).split(' ').map(Number);
    const printed = identifyProcess(pid);
    while (!isTime(shell)) await turn();
    mock.timers.tick(DEADLINE_MS);
    const error: unknown = await running.catch((caught: unknown) => caught);
    return { error, printed };
  } finally {
    mock.timers.reset();
  }
}

function failsBy(failure: ProcessFailure, message: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ProcessError);
    assert.equal(error.failure, failure);
    assert.match(error.message, message);
    return true;
  };
}

test('a program gets its input and its output is returned', async () => {
  assert.equal(await run('cat', [], { input: 'a\nb' }), 'a\nb');
  assert.equal((await runToExit('sh', ['-c', 'exit 3'])).code, 3);
});

test('a program that fails is named with its exit code and what it printed', async () => {
  await assert.rejects(
    run('sh', ['-c', 'echo broken >&2; exit 3']),
    failsBy('exit', /^sh -c .* failed with exit code 3: broken$/),
  );
});

test('a program that does not exist is named', async () => {
  await assert.rejects(run('no-such-program', []), failsBy('missing', /^no-such-program is not installed/));
});

test('at the deadline a program ends with everything that it has started', async () => {
  const { error, printed } = await untilDeadline('sleep 1000 & echo $! $$; wait', () => true);
  failsBy('timeout', /^sh did not end within 2000 ms$/)(error);
  await untilGone(printed);
});

test('a program that has left its process group and keeps the pipes open is not waited for', async () => {
  const { error, printed } = await untilDeadline('setsid sleep 1000 & echo $! $$', hasEnded);
  signalProcess(printed, 'SIGKILL');
  failsBy('timeout', /did not end/)(error);
});

test('output is bounded', async () => {
  await assert.rejects(run('yes', [], { stdoutMax: 10_000 }), failsBy('output', /more than 10000 bytes/));
  await assert.rejects(
    runToExit('yes', [], {
      onLine: () => {
        throw new Error('not what was expected');
      },
    }),
    /^Error: not what was expected$/,
  );
});

test('a signal ends it, also before it has begun', async () => {
  const cancel = new AbortController();
  const running = run('sleep', ['1000'], { signal: cancel.signal, deadlineMs: 60_000 });
  cancel.abort();
  await assert.rejects(running, failsBy('aborted', /^sleep was cancelled$/));
  await assert.rejects(run('true', [], { signal: cancel.signal }), failsBy('aborted', /cancelled/));
});

test('characters that come in two chunks are whole', async () => {
  const lines: string[] = [];
  await runToExit('sh', ['-c', "printf '\\303'; sleep 0.2; printf '\\244\\n'"], {
    onLine: (line) => lines.push(line),
  });
  assert.deepEqual(lines, ['ä']);
});

test('a program ends with the process that started it, even when that is killed', async () => {
  const script = `
    const { startProcess } = await import(${JSON.stringify(MODULE)});
    startProcess('sh', ['-c', 'echo $$; exec sleep 1000'], { stdio: ['ignore', 'inherit', 'inherit'] });`;
  const parent = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [chunk] = (await once(parent.stdout, 'data')) as [Buffer];
  const started = identifyProcess(Number(chunk.toString()));
  assert.ok(isAlive(started));
  parent.kill('SIGKILL');
  await untilGone(started);
});
