/** docs/security.md, "What one stolen runner credential can do": what it cannot. */
import assert from 'node:assert/strict';
import { purgeOperatorAudit } from '../src/tenancy/operator/purge.ts';
import { createHash, randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import { GATEWAY_LINK_PATH, newUuid, RUNNER_LINK_PATH } from '@releap/contract';
import { LINK_CLOSE, RUNNER_PROTOCOL } from '@releap/contract/runner';
import {
  credentialOf,
  dataKeyOf,
  GATEWAY_TOKEN,
  joinAs,
  JOIN_TOKEN,
  OPERATOR_TOKEN,
  opens,
} from '@releap/testing/credentials';
import {
  caller,
  create,
  FACTS,
  REGION,
  startWorld,
  until,
  waitFor,
  host,
  type Answer,
} from '@releap/testing/world';
import { WebSocket } from 'ws';

const world = await startWorld();
/** Has the sandbox. */
const victim = await world.runner();
const vm = await create(world.call, world, { env: { SECRET: 'of the victim' } });
await waitFor(world.call, vm.id, 'running');
/** Its credential is stolen. */
const stolen = await world.runner();

/** Dials the link and says hello as `runnerId`. @returns the close code, or what came, as text */
async function dial(
  credential: string,
  runnerId: string,
): Promise<{ code?: number; status?: number; text: string }> {
  const socket = new WebSocket(world.internalUrl.replace('http', 'ws') + RUNNER_LINK_PATH, {
    headers: { authorization: `Bearer ${credential}` },
  });
  let text = '';
  return new Promise((resolve) => {
    socket.on('unexpected-response', (_request, response) =>
      resolve({ ...(response.statusCode === undefined ? {} : { status: response.statusCode }), text }),
    );
    socket.on('error', () => undefined);
    socket.on('message', (data) => (text += (data as Buffer).toString()));
    socket.on('close', (code) => resolve({ code, text }));
    socket.on('open', () =>
      socket.send(
        JSON.stringify({
          type: 'hello',
          protocol: RUNNER_PROTOCOL,
          runner_id: runnerId,
          region: REGION,
          data_url: 'http://127.0.0.1:1',
          facts: FACTS,
          capabilities: [],
          kinds: ['sandbox', 'snapshot', 'build'],
        }),
      ),
    );
  });
}

/** What an upgrade on the internal listener answers. */
async function upgradeStatus(path: string, credential: string): Promise<number | undefined> {
  const socket = new WebSocket(world.internalUrl.replace('http', 'ws') + path, {
    headers: { authorization: `Bearer ${credential}` },
  });
  return new Promise((resolve) => {
    socket.on('unexpected-response', (_request, response) => resolve(response.statusCode));
    socket.on('open', () => {
      socket.terminate();
      resolve(101);
    });
    socket.on('error', () => undefined);
  });
}

describe('a stolen runner credential', () => {
  it('cannot connect as another runner, read its assignments or end its connection', async () => {
    const { code, text } = await dial(credentialOf(stolen.id), victim.id);
    assert.equal(code, LINK_CLOSE.refused);
    assert.equal(text, '');
    assert.equal(victim.closeCode, undefined);
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.status, 'running');
  });

  it('cannot report sandboxes of another host', async () => {
    const assignment = await victim.assigned(vm.uuid);
    await stolen.observed(assignment, { status: 'failed', error: 'says the thief' });
    assert.equal((await world.call('GET', `/vms/${vm.id}`)).body.status, 'running');
  });

  it('cannot report builds of another host, nor keep them from being cancelled', async () => {
    await using other = await startWorld({ builtinImages: [] });
    const builder = await other.runner({ build: () => undefined });
    const post = (ref: string): Promise<Answer> =>
      other.call('POST', '/images', { name: 'app', source: { type: 'registry', ref } });
    const { body } = await post('localhost:5000/app:1');
    await until(() => builder.builds.length === 1);
    const [job] = builder.builds;
    assert.ok(job);
    const thief = await other.runner({ build: () => undefined });
    const forged = { manifest_name: `sha256:${'ff'.repeat(32)}`, layer_count: 1 };
    for (const status of ['done', 'failed', 'cancelled'] as const) {
      const seq = thief.built(job, status === 'done' ? forged : { error: 'says the thief' }, status);
      await until(() => thief.acked >= seq);
    }
    assert.equal((await other.call('GET', `/jobs/${body.job_id}`)).body.status, 'running');
    const { images } = (await other.call('GET', '/images')).body;
    assert.deepEqual([images[0].status, images[0].error], ['pending', null]);
    // A newer build replaces it: the real builder is still known, and told to stop.
    await post('localhost:5000/app:2');
    await until(() => builder.cancelled.some((one) => one.job_id === job.job_id));
    assert.deepEqual(thief.cancelled, []);
  });

  it('cannot read content of the store that is not assigned to it, nor store any', async () => {
    const content = 'a build context of another host';
    const digest = `sha256:${createHash('sha256').update(content).digest('hex')}`;
    const job = newUuid();
    await world.database.pool.query(
      `insert into jobs (id, kind, status, attempts, runner_id, lease_until, payload)
       values ($1, 'build', 'running', 1, $2, now() + interval '1 hour', $3)`,
      [job, victim.id, JSON.stringify({ root: { type: 'dockerfile', context: { digest, bytes: 1 } } })],
    );
    const ask = (method: string, path: string, body?: string): Promise<Response> =>
      fetch(`${world.internalUrl}${path}`, {
        method,
        headers: {
          authorization: `Bearer ${credentialOf(stolen.id)}`,
          'content-type': path.includes('/blobs/') ? 'application/octet-stream' : 'application/json',
        },
        ...(body === undefined ? {} : { body }),
      });
    assert.equal((await ask('GET', `/internal/blobs/${digest}`)).status, 404);
    assert.equal((await ask('GET', `/internal/artifacts/${digest}`)).status, 404);
    const put = await ask('PUT', `/internal/blobs/${digest}?location=${job}`, content);
    assert.equal(put.status, 404);
    const missing = `/internal/artifact-locations/${job}/missing`;
    assert.equal((await ask('POST', missing, JSON.stringify({ digests: [digest] }))).status, 404);
    await world.database.pool.query('delete from jobs where id = $1', [job]);
  });

  it('cannot join as another runner, known or new', async () => {
    for (const id of [victim.id, randomUUID()]) {
      const answer = await joinAs(world.internalUrl, id, {
        token: credentialOf(stolen.id),
        credential: `of the thief ${id}`,
      });
      assert.equal(answer.status, 401);
    }
  });

  it("cannot open another runner's data server: the keys differ, and tokens name runner and sandbox", async () => {
    const [mine, theirs] = await Promise.all(
      [stolen, victim].map(({ id }) => dataKeyOf(world.internalUrl, credentialOf(id))),
    );
    assert.ok(mine !== undefined && theirs !== undefined);
    assert.notEqual(mine.key, theirs.key);
    assert.notEqual(mine.key_id, theirs.key_id);
    // As the control plane shows it when it reads a log.
    let token = '';
    victim.logs.set(`/vms/${vm.uuid}/logs/console`, (request, response) => {
      token = request.headers.authorization?.slice('Bearer '.length) ?? '';
      response.end('a log');
    });
    assert.equal((await world.call('GET', `/vms/${vm.id}/logs`)).text, 'a log');
    assert.equal(await opens(theirs, token, victim.id, vm.uuid), true);
    assert.equal(await opens(theirs, token, victim.id, randomUUID()), false);
    assert.equal(await opens(mine, token, stolen.id, vm.uuid), false);
  });

  it('is revoked by the operator: its connection ends, and only their permission joins the host again', async () => {
    const permitted = await world.operator('POST', `/operator/hosts/${stolen.id}/join-permission`);
    assert.equal(permitted.status, 200, permitted.text);
    const its = await host(world, stolen.id);
    assert.deepEqual([its?.status, its?.ready], ['offline', false], 'nothing is placed there any more');
    await until(() => stolen.closeCode !== undefined);
    assert.equal((await dial(credentialOf(stolen.id), stolen.id)).status, 401);
    const join = (token: string, id = stolen.id): Promise<Response> =>
      joinAs(world.internalUrl, id, { token, credential: 'the-next-one' });
    assert.equal((await join(JOIN_TOKEN)).status, 409);
    assert.equal((await join(credentialOf(stolen.id))).status, 401);
    assert.equal((await join(permitted.body.token, victim.id)).status, 401);
    assert.equal((await join(permitted.body.token)).status, 200);
    assert.equal(
      (await joinAs(world.internalUrl, stolen.id, { token: permitted.body.token, credential: 'x' })).status,
      401,
    );
    const { key_id } = await dataKeyOf(world.internalUrl, 'the-next-one');
    assert.match(key_id, /^[0-9a-f-]{36}$/);
  });
});

describe('the join token', () => {
  it('joins a new runner, again with the same credential, and takes over no known one', async () => {
    const id = randomUUID();
    for (let i = 0; i < 2; i++) assert.equal((await joinAs(world.internalUrl, id)).status, 200);
    const taken = await joinAs(world.internalUrl, id, { credential: 'another' });
    assert.equal(taken.status, 409);
    assert.match(((await taken.json()) as { error: string }).error, /is already registered/);
    // A host whose credentials are gone.
    const known = randomUUID();
    await world.database.pool.query(
      `insert into runners (id, region, status, data_url, facts) values ($1, $2, 'offline', 'unix:/x', '{}')`,
      [known, REGION],
    );
    assert.equal((await joinAs(world.internalUrl, known)).status, 409);
  });

  it('a runner changes its credential with the one it has; the first use of the new one ends the old one', async () => {
    const id = randomUUID();
    const next = `next-of-${id}`;
    assert.equal((await joinAs(world.internalUrl, id)).status, 200);
    assert.equal(
      (await joinAs(world.internalUrl, id, { token: credentialOf(id), credential: next })).status,
      200,
    );
    await dataKeyOf(world.internalUrl, credentialOf(id));
    await dataKeyOf(world.internalUrl, next);
    await assert.rejects(dataKeyOf(world.internalUrl, credentialOf(id)), /401/);
  });
});

describe('no credential of one plane opens another', () => {
  const NOWHERE = '00000000-0000-4000-8000-000000000000';
  const planes = {
    workload: ['GET', '/vms', 'url'],
    management: ['GET', '/orgs', 'url'],
    operator: ['GET', '/operator/hosts', 'internalUrl'],
    gateway: ['UPGRADE', GATEWAY_LINK_PATH, 'internalUrl'],
    'runner link': ['UPGRADE', RUNNER_LINK_PATH, 'internalUrl'],
    runner: ['POST', '/internal/runners/data-key', 'internalUrl'],
    join: ['POST', '/internal/runners/join', 'internalUrl'],
  } as const;
  const credentials = {
    workload: () => world.call.key,
    operator: () => OPERATOR_TOKEN,
    gateway: () => GATEWAY_TOKEN,
    join: () => JOIN_TOKEN,
    runner: () => credentialOf(victim.id),
    sandbox: () => vm.token,
  };
  for (const [kind, credential] of Object.entries(credentials)) {
    for (const [plane, [method, path, base]] of Object.entries(planes)) {
      if (plane === kind || (kind === 'runner' && plane === 'runner link')) continue;
      it(`${kind} does not open ${plane}`, async () => {
        if (method === 'UPGRADE') return assert.equal(await upgradeStatus(path, credential()), 401);
        const body =
          plane === 'join'
            ? { runner_id: NOWHERE, credential_sha256: createHash('sha256').update('x').digest('hex') }
            : undefined;
        const answer = await caller(() => world[base], credential(), '')(method, path, body);
        // This server has no issuer: the management plane may also say that.
        assert.ok(answer.status === 401 || (plane === 'management' && answer.status === 503), answer.text);
      });
    }
  }
});

describe('GET /operator/audit', () => {
  it('has every call: what, about what, and how it ended', async () => {
    const id = randomUUID();
    assert.equal((await world.operator('POST', `/operator/hosts/${id}/drain`, { force: true })).status, 404);
    assert.equal((await world.operator('POST', `/operator/hosts/${victim.id}/undrain`)).status, 200);
    const { body, status, text } = await world.operator('GET', '/operator/audit?limit=2');
    assert.equal(status, 200, text);
    const [undrain, drain] = body.entries;
    assert.deepEqual(
      [undrain.actor, undrain.operation, undrain.subject, undrain.outcome, undrain.error],
      ['operator', 'undrainHost', victim.id, 'done', null],
    );
    assert.deepEqual(
      [drain.operation, drain.subject, drain.request, drain.outcome, drain.error],
      ['drainHost', id, { force: true }, 'refused', `host "${id}" not found`],
    );
    assert.equal(drain.ip, '127.0.0.1');
    assert.equal(
      (await world.operator('GET', `/operator/audit?before=${drain.created_at}`)).body.entries[0]?.id ===
        drain.id,
      false,
    );
    const [own] = (await world.operator('GET', '/operator/audit?limit=1')).body.entries;
    assert.deepEqual([own.operation, own.outcome], ['listOperatorAudit', 'done']);
  });

  it('a change that was done is answered as done although its outcome cannot be recorded; a read is refused', async () => {
    const { pool } = world.database;
    const undrain = () => world.operator('POST', `/operator/hosts/${victim.id}/undrain`);
    await pool.query(`create function refuse_audit() returns trigger language plpgsql as $$
      begin raise exception 'no space'; end $$`);
    await pool.query(
      `create trigger refuse_audit before update on operator_audit execute function refuse_audit()`,
    );
    try {
      assert.equal((await undrain()).status, 200);
      assert.equal((await world.operator('GET', '/operator/audit?limit=1')).body.entries[0].outcome, null);
    } finally {
      await pool.query('drop trigger refuse_audit on operator_audit');
    }
    await pool.query(
      `create trigger refuse_audit before insert on operator_audit execute function refuse_audit()`,
    );
    try {
      assert.deepEqual(
        [(await undrain()).status, (await world.operator('GET', '/operator/hosts')).status],
        [500, 500],
      );
    } finally {
      await pool.query('drop trigger refuse_audit on operator_audit');
    }
  });

  it('loses entries that are older than the retention of audit logs', async () => {
    const { pool } = world.database;
    const count = async (): Promise<number> =>
      (await pool.query('select 1 from operator_audit')).rowCount ?? 0;
    const before = await count();
    await pool.query(`insert into operator_audit (id, created_at, operation)
      select gen_random_uuid(), now() - interval '400 days', 'drainHost' from generate_series(1, 25)`);
    assert.equal(await purgeOperatorAudit(world.database, 399, new AbortController().signal, 10), 25);
    assert.equal(await count(), before);
  });
});

describe('GET /livez and /readyz', () => {
  it('answer without a host, when /healthz does not', async () => {
    await using empty = await startWorld();
    for (const path of ['/livez', '/readyz'])
      assert.deepEqual((await empty.call('GET', path)).body, { status: 'ok' }, path);
    assert.equal((await empty.call('GET', '/healthz')).status, 503);
  });
});
