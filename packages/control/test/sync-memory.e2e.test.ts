import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { newUuid, RUNNER_LINK_PATH } from '@releap/contract';
import { KIND_NAMES, RUNNER_PROTOCOL } from '@releap/contract/runner';
import { ensureBootstrap, startControl } from '../src/index.ts';
import { openDatabase } from '@releap/database';
import { freshDatabase } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import { rounds } from '@releap/testing/repetitions';
import { credentialOf, joinAs, TOKENS } from '@releap/testing/credentials';
import { FACTS, quiet, REGION } from '@releap/testing/world';
import { WebSocket } from 'ws';

const CHILD = programOf(fileURLToPath(new URL('support/server.ts', import.meta.url)));
const SANDBOXES = rounds(1_200, 2_000);
const MIB = 2 ** 20;
/** The most that a request may ask for. */
const ENVIRONMENT_BYTES = MIB;
/** Well below what the environments have together. */
const BUDGET_BYTES = 768 * MIB;

/** Peak of the resident memory of a process since `resetPeak`, in bytes. */
async function peakBytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
}
const resetPeak = (pid: number): Promise<void> => writeFile(`/proc/${pid}/clear_refs`, '5');

/** Gigabytes are looked through as bytes. */
const ITEM = Buffer.from('"kind":"sandbox"');
const SYNC = Buffer.from('{"type":"sync"');
const LAST = Buffer.from('"more":false}');

/** Says hello and counts what it is assigned, without parsing gigabytes of it. */
async function sync(url: string, runnerId: string): Promise<{ assigned: number; bytes: number }> {
  const socket = new WebSocket(url.replace('http', 'ws') + RUNNER_LINK_PATH, {
    headers: { authorization: `Bearer ${credentialOf(runnerId)}` },
    perMessageDeflate: false,
    skipUTF8Validation: true,
  });
  await once(socket, 'open');
  let assigned = 0;
  let bytes = 0;
  const complete = new Promise<void>((resolve, reject) => {
    socket.on('close', (code, reason) => reject(new Error(`closed with ${code}: ${reason.toString()}`)));
    socket.on('message', (data) => {
      const message = data as Buffer;
      bytes += message.length;
      for (let at = message.indexOf(ITEM); at !== -1; at = message.indexOf(ITEM, at + ITEM.length))
        assigned += 1;
      const last = message.subarray(-LAST.length).equals(LAST);
      if (last && message.subarray(0, SYNC.length).equals(SYNC)) resolve();
    });
  });
  socket.send(
    JSON.stringify({
      type: 'hello',
      protocol: RUNNER_PROTOCOL,
      runner_id: runnerId,
      region: REGION,
      data_url: 'http://127.0.0.1:1',
      facts: FACTS,
      capabilities: [],
      kinds: KIND_NAMES,
    }),
  );
  const heartbeat = setInterval(() => socket.send('{"type":"heartbeat","ready":false}'), 1_000);
  try {
    await complete;
  } finally {
    clearInterval(heartbeat);
    socket.removeAllListeners('close');
    socket.terminate();
  }
  return { assigned, bytes };
}

it(`a runner with ${SANDBOXES} sandboxes of 1 MiB of environment reconnects, and the memory of control stays bounded`, async (test) => {
  const databaseUrl = await freshDatabase();
  const first = await startControl({
    databaseUrl,
    listen: { host: '127.0.0.1', port: 0 },
    tokens: TOKENS,
    region: { id: REGION },
    store: { type: 'folder', path: '/nonexistent' },
    log: quiet,
  });
  const runnerId = randomUUID();
  assert.equal((await joinAs(first.internalUrl, runnerId)).status, 200);
  await first.close();
  await using database = openDatabase({
    url: databaseUrl,
    log: quiet,
    connections: 2,
    statementTimeoutMs: 300_000,
  });
  const { projectId } = await ensureBootstrap(database, { keyName: 'default' });
  await database.pool.query(
    `insert into runners (id, region, status, data_url, facts, server_id) values ($1, $2, 'offline', 'http://127.0.0.1:1', $3, $4)`,
    [runnerId, REGION, JSON.stringify(FACTS), newUuid()],
  );
  await database.transaction(async (client) => {
    await client.query(
      `insert into sandboxes (id, project_id, region, status, desired, runner_id, held, job_id, mode, cpu, mem_mib,
                              scratch_mib, cpu_arch, access_token_hash, spec, env_bytes)
       select gen_random_uuid(), $1, $2, 'running', 'running', $3, true, gen_random_uuid(), 'burstable', 1, 128, 128,
              'amd64', decode(repeat('00', 32), 'hex'),
              '{"version":1,"name":"x","vcpus":1,"ports":[],"egress_policy":null,"image_ref":"busybox","root":{"type":"builtin","name":"busybox"},"origin":null}',
              $4
         from generate_series(1, $5)`,
      [projectId, REGION, runnerId, ENVIRONMENT_BYTES, SANDBOXES],
    );
    await client.query(
      `insert into sandbox_env select s.id, e.env from (select id from sandboxes limit 1) s,
              (select jsonb_object_agg('V' || n, repeat('x', 65536 - 16)) as env from generate_series(1, 16) n) e`,
    );
    // Copies of a stored value are not compressed again, which would take most of this test's CPU time in PostgreSQL.
    await client.query(
      `insert into sandbox_env select s.id, e.env from sandboxes s, sandbox_env e where s.id not in (select sandbox_id from sandbox_env)`,
    );
  });

  const child = fork(CHILD, {
    env: {
      ...process.env,
      TEST_DATABASE_URL: databaseUrl,
      TEST_REGION: REGION,
      TEST_PORT: '0',
      TEST_INTERNAL_PORT: '0',
    },
  });
  try {
    const [{ internalUrl }] = (await once(child, 'message')) as [{ internalUrl: string }];
    const pid = child.pid ?? 0;
    await resetPeak(pid);
    const { assigned, bytes } = await sync(internalUrl, runnerId);
    assert.equal(assigned, SANDBOXES);
    assert.ok(bytes > 0.99 * SANDBOXES * ENVIRONMENT_BYTES, `${bytes} bytes were sent`);
    const peak = await peakBytes(pid);
    test.diagnostic(`peak ${Math.round(peak / MIB)} MiB of ${BUDGET_BYTES / MIB} MiB`);
    assert.ok(peak < BUDGET_BYTES, `${Math.round(peak / MIB)} MiB of ${BUDGET_BYTES / MIB} MiB`);
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
});
