import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { ProcessError, run, runToExit } from '../src/process/index.ts';
import type { ProcessFailure } from '../src/process/process-error.ts';

const MODULE = new URL('../src/process/index.ts', import.meta.url).href;

function isRunning(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return false;
  }
}

async function untilGone(pid: number): Promise<void> {
  while (isRunning(pid)) await sleep(10);
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
  let background: number | undefined;
  const running = runToExit('sh', ['-c', 'sleep 1000 & echo $!; wait'], {
    deadlineMs: 2_000,
    onLine: (line) => {
      background = Number(line);
    },
  });
  await assert.rejects(running, failsBy('timeout', /^sh did not end within 2000 ms$/));
  assert.ok(background !== undefined && background > 1);
  await untilGone(background);
});

test('a program that has left its process group and keeps the pipes open is not waited for', async () => {
  let detached: number | undefined;
  const running = runToExit('sh', ['-c', 'setsid sleep 1000 & echo $!'], {
    deadlineMs: 2_000,
    onLine: (line) => {
      detached = Number(line);
    },
  });
  try {
    await assert.rejects(running, failsBy('timeout', /did not end/));
  } finally {
    if (detached !== undefined) process.kill(detached, 'SIGKILL');
  }
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
  const pid = Number(chunk.toString());
  assert.ok(isRunning(pid));
  parent.kill('SIGKILL');
  await untilGone(pid);
});
