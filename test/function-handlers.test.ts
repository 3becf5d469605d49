/** The handlers of docs/functions.md, deployed and called with the command line, up to the report and the bill. */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import type { Service } from '@releap/testing/service';
import { isNightly } from '@releap/testing/repetitions';
import { sharedService } from '@releap/testing/shared-service';

const RLP = fileURLToPath(new URL('../packages/cli/bin/rlp', import.meta.url));
const run = promisify(execFile);

/** The blocks of the page, by language, in its order. */
async function examples(language: string): Promise<string[]> {
  const page = await readFile(new URL('../docs/functions.md', import.meta.url), 'utf8');
  return [...page.matchAll(new RegExp('^```' + language + '\n(.*?)^```$', 'gms'))].map(
    ([, code]) => code ?? '',
  );
}

/** Builds `handler.go`, as the page says. */
async function buildGo(folder: string): Promise<void> {
  const options = { cwd: folder, env: { ...process.env, CGO_ENABLED: '0' } };
  await run(
    process.env['RELEAP_TEST_GO'] || 'go',
    ['build', '-ldflags', '-s -w', '-o', 'handler', 'handler.go'],
    options,
  );
}

describe('handlers on this machine', () => {
  let folder: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'releap-handlers-'));
  });
  after(() => rm(folder, { recursive: true, force: true }));

  /** Calls a handler that runs as a process, as a gateway does. */
  async function call(command: string, args: string[]): Promise<unknown> {
    const port = await freePort();
    const child = spawn(command, args, {
      env: { ...process.env, RLP_FN_PORT: String(port) },
      stdio: 'inherit',
    });
    const ended = once(child, 'exit');
    try {
      return await eventually(`${command} answers`, async () => {
        const answer = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body: '[1, 2, 3]' });
        return [answer.status, await answer.json()];
      });
    } finally {
      child.kill('SIGKILL');
      await ended;
    }
  }

  test('in Node.js', async () => {
    const [code = ''] = await examples('js');
    await writeFile(join(folder, 'handler.mjs'), code);
    assert.deepEqual(await call(process.execPath, [join(folder, 'handler.mjs')]), [200, { sum: 6 }]);
  });

  test('in Go', async () => {
    const [code = ''] = await examples('go');
    await writeFile(join(folder, 'handler.go'), code);
    await buildGo(folder);
    assert.deepEqual(await call(join(folder, 'handler'), []), [200, { sum: 6 }]);
  });
});

interface Stats {
  billed_credits: string;
  functions: {
    name: string;
    total: number;
    succeeded: number;
    shed: number;
    cold: number;
    warm: number;
    sum_ms: number;
  }[];
}

describe('handlers in instances', () => {
  let service: Service;
  before(async () => {
    service = await sharedService();
  });
  after(async () => {
    for (const name of ['sum-python', 'sum-shell', 'sum-go', 'sum-broken'])
      await rlp('fn', 'rm', name).catch(() => undefined);
    await service?.[Symbol.asyncDispose]();
  });

  async function rlp(...args: string[]): Promise<string> {
    const env = { ...process.env, RELEAP_HOME: service.home };
    return (await run(RLP, args, { env, timeout: 300_000 })).stdout;
  }
  /** A busy machine may take longer to start an instance than a call waits. */
  const inTime = (...args: string[]): Promise<string> =>
    eventually('a call that finds capacity', () =>
      rlp(...args).catch((error: Error & { stderr?: string }) => {
        if (/no instance had capacity/.test(error.stderr ?? '')) return undefined;
        throw error;
      }),
    );
  const sum = async (name: string): Promise<unknown> =>
    JSON.parse(await inTime('fn', 'invoke', name, '[1, 2, 3]'));

  test('in Python and as a shell script: deploy, call, output, numbers and cost', async () => {
    const shell = await examples('sh');
    const python = /<<'END'\n(.*?)^END$/ms.exec(shell[0] ?? '')?.[1] ?? '';
    const script = shell.find((code) => code.includes('httpd -f')) ?? '';
    assert.equal(
      await rlp('fn', 'deploy', 'sum-shell', '--image', 'busybox', '--', 'sh', '-c', script),
      'sum-shell v1\n',
    );
    assert.deepEqual(await sum('sum-shell'), { sum: 6 });
    assert.deepEqual(JSON.parse(await inTime('fn', 'spawn', 'sum-shell', '[4, 5]', '--wait')), { sum: 9 });
    await rlp('fn', 'deploy', 'sum-python', '--image', 'debian', '--', 'python3', '-c', python);
    assert.deepEqual(await sum('sum-python'), { sum: 6 });
    assert.deepEqual(await sum('sum-python'), { sum: 6 });
    await eventually('the output of the handler is there', async () =>
      /^\[v1 [0-9a-f]{8}\] .*"POST \/ HTTP\/1\.1" 200 -$/m.test(await rlp('fn', 'logs', 'sum-python')),
    );
    // Gateways report calls that have ended within a second.
    const { numbers, cost } = await eventually('both calls are recorded', async () => {
      const stats = JSON.parse(await rlp('fn', 'stats', '--json')) as Stats;
      const found = stats.functions.find(({ name, succeeded }) => name === 'sum-python' && succeeded >= 2);
      return found && { numbers: found, cost: stats.billed_credits };
    });
    assert.deepEqual([numbers.total - numbers.shed, numbers.succeeded], [2, 2]);
    assert.equal(numbers.cold + numbers.warm, 2);
    // What a call has started that did not wait for it may run by the next one.
    if (numbers.shed === 0) assert.equal(numbers.cold, 1);
    assert.ok(numbers.sum_ms > 0);
    assert.ok(Number(cost) > 0);
  });

  test('in Go: a folder with the program and its Dockerfile', { skip: !isNightly() }, async () => {
    const folder = await mkdtemp(join(tmpdir(), 'releap-handlers-'));
    try {
      const [code = ''] = await examples('go');
      await writeFile(join(folder, 'handler.go'), code);
      await writeFile(join(folder, 'Dockerfile'), 'FROM scratch\nCOPY handler /\nENTRYPOINT ["/handler"]\n');
      await buildGo(folder);
      assert.equal(await rlp('fn', 'deploy', 'sum-go', folder), 'sum-go v1\n');
      assert.deepEqual(await sum('sum-go'), { sum: 6 });
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });

  test('one that ends says so when it is deployed', async () => {
    const failed = await rlp(
      'fn',
      'deploy',
      'sum-broken',
      '--image',
      'busybox',
      '--',
      'sh',
      '-c',
      'echo no luck; exit 3',
    ).catch((error: { code?: number; stderr?: string }) => error);
    assert.ok(typeof failed === 'object');
    assert.equal(failed.code, 1);
    assert.match(failed.stderr ?? '', /version 1 of sum-broken cannot serve: .*3/);
    assert.match(await rlp('fn', 'logs', 'sum-broken'), /no luck/);
  });
});
