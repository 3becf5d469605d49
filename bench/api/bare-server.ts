/**
 * The baseline of the API: node:http and `pg`, nothing else. Runs the same statements as the control plane,
 * prepared, on the same database: no authentication, no validation, no look-up of the image, no placement. Forked by
 * the api suite.
 */
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { resolveSandboxCreate } from '@releap/contract';
import type { Database } from '@releap/database';
import { Pool } from 'pg';
import { createSandbox } from '../../packages/control/src/compute/sandboxes/insert.ts';
import { createRecordReader } from '../../packages/control/src/compute/sandboxes/queries.ts';
import type { ServerReady } from './messages.ts';

interface Prepared {
  name: string;
  text: string;
  values: unknown[];
}

const [connectionString, projectId = '', connections = ''] = process.argv.slice(2);

/** What the control plane would send to the database, without a database. */
async function recorded(run: (pool: Database['pool']) => Promise<unknown>): Promise<Prepared> {
  const seen: Prepared[] = [];
  const query = (prepared: Prepared): Promise<{ rows: unknown[] }> => {
    seen.push(prepared);
    return Promise.resolve({ rows: [] });
  };
  await run({ query } as unknown as Database['pool']);
  const [only, ...more] = seen;
  if (only === undefined || more.length > 0) throw new Error('one statement was expected');
  return only;
}

const select = await recorded((pool) => createRecordReader(pool)({ uuid: '', region: null }, projectId));
const ids = { id: randomUUID(), jobId: randomUUID(), accessToken: 'token' };
const insert = await recorded((pool) =>
  createSandbox(pool, {
    owner: { kind: 'project', projectId },
    spec: {
      ...resolveSandboxCreate({ image: 'busybox' }),
      name: 'bare',
      region: 'local',
      cpu_arch: 'amd64',
      root: { type: 'builtin', name: 'busybox' },
      image_ref: 'busybox',
    },
    source: { kind: 'image' },
    ids,
    deadlineMs: 3_600_000,
  }),
);

const pool = new Pool({ connectionString, max: Number(connections) });

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = [];
  for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString('utf8'));
}

async function answer(request: IncomingMessage): Promise<unknown> {
  if (request.method === 'GET') {
    const id = (request.url ?? '').slice('/vms/'.length);
    return (
      await pool.query({
        ...select,
        values: [JSON.stringify([{ n: 0, id, project: projectId, in_region: null }])],
      })
    ).rows[0];
  }
  await bodyOf(request);
  const id = randomUUID();
  const job = randomUUID();
  const token = randomBytes(32).toString('base64url');
  const digest = createHash('sha256').update(token).digest();
  const values = [
    id,
    job,
    ...insert.values.slice(2).map((value) => (Buffer.isBuffer(value) ? digest : value)),
  ];
  await pool.query({ ...insert, values });
  return { vm_id: id, job_id: job, name: 'bare', status: 'pending', access_token: token };
}

const server = createServer((request, response) => {
  answer(request).then(
    (body) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(body));
    },
    (error: unknown) => response.writeHead(500).end(String(error)),
  );
});
server.listen(0, '127.0.0.1', () => {
  const ready: ServerReady = { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
  process.send?.(ready);
});
process.once('disconnect', () => process.exit(0));
