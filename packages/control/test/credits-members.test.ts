/** `GET /orgs/:id/credits`, and the path of a new user from signing in to running out of credits and being granted new ones. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { formatAmount, parseAmount } from '@releap/contract';
import { PRICES } from './support/billing.ts';
import { inspectLedger, inspectMeters } from '@releap/testing/inspect';
import { startSignedInWorld } from '@releap/testing/issuer';
import { caller, until, waitFor, sharedText, type Answer } from '@releap/testing/world';
import { OPERATOR_TOKEN } from '@releap/testing/credentials';

const world = await startSignedInWorld({
  limits: { runnerLostAfterMs: 8_000 },
  billing: { mode: 'enforce', prices: PRICES, meterMs: 1_000, passMs: 50 },
});
await world.runner();
await until(async () => (await world.call('GET', '/healthz')).status === 200);
const ada = await world.as('ada');

const operator = (method: string, path: string, body?: unknown): Promise<Answer> =>
  caller(() => world.internalUrl, OPERATOR_TOKEN, '')(method, path, body);

async function grant(orgId: string, amount: string, note: string, kind = 'grant'): Promise<void> {
  const answer = await operator('POST', `/operator/orgs/${orgId}/grants`, { amount, note, kind });
  assert.equal(answer.status, 200, answer.text);
}

describe('GET /orgs/:id/credits', () => {
  it('is the credits record: org_id, balance, overdraft_limit and its source, enabled, ledger', async () => {
    const { orgId } = await world.tenant(ada, 'empty');
    const empty = await ada('GET', `/orgs/${orgId}/credits`);
    assert.deepEqual(
      [empty.status, empty.body],
      [
        200,
        {
          org_id: orgId,
          balance: '0',
          overdraft_limit: '1',
          overdraft_limit_source: 'global',
          enabled: true,
          ledger: [],
        },
      ],
    );
    await grant(orgId, '10.50', 'welcome');
    await grant(orgId, '-0.25', 'a mistake', 'adjustment');
    const { body } = await ada('GET', `/orgs/${orgId}/credits`);
    assert.equal(body.balance, '10.25');
    assert.deepEqual(
      body.ledger.map((entry: Record<string, unknown>) => [
        entry['amount'],
        entry['kind'],
        entry['vm_id'],
        entry['note'],
      ]),
      [
        ['-0.25', 'adjustment', null, 'a mistake'],
        ['10.5', 'grant', null, 'welcome'],
      ],
    );
    for (const entry of body.ledger) {
      assert.deepEqual(Object.keys(entry).toSorted(), [
        'amount',
        'created_at',
        'id',
        'kind',
        'note',
        'vm_id',
      ]);
      assert.ok(Number.isInteger(entry.id));
      assert.ok(!Number.isNaN(Date.parse(entry.created_at)));
    }
    assert.ok(body.ledger[0].id > body.ledger[1].id, 'newest first');
  });

  it('gives 50 entries, or as many as limit says, at most 500', async () => {
    const { orgId } = await world.tenant(ada, 'long');
    await world.database.pool.query(
      `insert into credit_ledger (org_id, amount, kind) select $1, 1, 'grant' from generate_series(1, 600)`,
      [orgId],
    );
    for (const [query, length] of [
      ['', 50],
      ['?limit=1', 1],
      ['?limit=500', 500],
      ['?limit=501', 500],
      ['?limit=0', 1],
      ['?limit=-3', 1],
    ] as const) {
      const { status, body } = await ada('GET', `/orgs/${orgId}/credits${query}`);
      assert.deepEqual([status, body.ledger.length], [200, length], query);
    }
    assert.equal((await ada('GET', `/orgs/${orgId}/credits?limit=many`)).status, 400);
  });

  it('may be read by members only: 404 as for one that does not exist; 401 without a token or with a key', async () => {
    const { orgId, key } = await world.tenant(ada, 'shared');
    const bob = await world.as('bob');
    const eve = await world.as('eve');
    const invited = await ada('POST', `/orgs/${orgId}/invitations`, { email: bob.email });
    assert.equal((await bob('POST', `/invitations/${invited.body.id}/accept`)).status, 200);
    assert.equal((await bob('GET', `/orgs/${orgId}/credits`)).status, 200);
    const strange = await eve('GET', `/orgs/${orgId}/credits`);
    const nothing = await eve('GET', '/orgs/00000000-0000-4000-8000-000000000000/credits');
    assert.equal(strange.status, 404);
    assert.equal(
      sharedText(strange).replace(orgId, '#'),
      sharedText(nothing).replace('00000000-0000-4000-8000-000000000000', '#'),
    );
    assert.equal((await key('GET', `/orgs/${orgId}/credits`)).status, 401);
    assert.equal((await caller(() => world.url, '', '')('GET', `/orgs/${orgId}/credits`)).status, 401);
  });
});

describe('a new user', () => {
  it('signs in, makes an organization and a project, invites, mints a key, creates a sandbox, runs out of credits, is refused, is granted some, and continues', async () => {
    const nia = await world.as('nia');
    const org = await nia('POST', '/orgs', { name: 'nia and friends' });
    const orgId: string = org.body.id;
    const project = await nia('POST', `/orgs/${orgId}/projects`, { name: 'first' });
    const friend = await world.as('friend');
    const invitation = await nia('POST', `/orgs/${orgId}/invitations`, { email: friend.email });
    assert.equal((await friend('POST', `/invitations/${invitation.body.id}/accept`)).status, 200);
    const minted = await nia('POST', `/projects/${project.body.id}/api-keys`);
    const key = caller(() => world.url, String(minted.body.token), String(project.body.id));
    const refused = await key('POST', '/vms', { image: 'busybox' });
    assert.equal(refused.status, 402, 'no credits have been granted yet');

    await grant(orgId, '1', 'welcome');
    const created = await key('POST', '/vms', { image: 'busybox', persistent: true });
    assert.equal(created.status, 200, created.text);
    const id: string = created.body.vm_id;
    await waitFor(key, id, 'running');
    const used = async (): Promise<{ vm_id: string; amount: string }[]> =>
      (await friend('GET', `/orgs/${orgId}/credits`)).body.ledger.filter(
        (entry: { kind: string }) => entry.kind === 'usage',
      );
    await until(async () => (await used()).length > 0);
    const [entry] = await used();
    assert.equal(entry?.vm_id, id);
    assert.ok((parseAmount(entry.amount) ?? 0n) < 0n);

    const { balance } = (await nia('GET', `/orgs/${orgId}/credits`)).body;
    await grant(orgId, formatAmount(-(parseAmount(balance) ?? 0n)), 'the end of the trial', 'adjustment');
    for (const [method, path, body] of [
      ['POST', '/vms', { image: 'busybox' }],
      ['POST', `/vms/${id}/fork`, {}],
    ] as const) {
      const answer = await key(method, path, body);
      assert.equal(answer.status, 402, `${path}: ${answer.text}`);
    }
    assert.equal((await key('GET', `/vms/${id}`)).body.status, 'running', 'what runs has its grace');
    assert.equal((await key('POST', `/vms/${id}/pause`)).status, 200);
    await waitFor(key, id, 'paused');
    assert.equal((await key('POST', `/vms/${id}/resume`)).status, 402);

    await grant(orgId, '5', 'paid');
    assert.equal((await key('POST', `/vms/${id}/resume`)).status, 200);
    await waitFor(key, id, 'running');
    assert.equal((await key('DELETE', `/vms/${id}`)).status, 200);
    await waitFor(key, id, 'deleted').catch(() => undefined);
    const ofOrg = { org_id: orgId };
    await until(async () => (await inspectMeters(world.database, ofOrg)).length === 0);
    let sum = 0n;
    for (const { amount } of await inspectLedger(world.database, ofOrg)) sum += BigInt(amount);
    assert.equal((await nia('GET', `/orgs/${orgId}/credits`)).body.balance, formatAmount(sum));
  });
});

describe('creating organizations, projects and keys with an Idempotency-Key', () => {
  const withKey = (key: string): RequestInit => ({ headers: { 'idempotency-key': key } });
  const cutOff = async (): Promise<void> => {
    await world.database.pool.query(`update idempotency_keys set sealed = null, lease_until = now()`);
  };

  it('makes each once, also when the server dies before it has written the answer down', async () => {
    const org = await ada('POST', '/orgs', { name: 'once' }, withKey('org'));
    const project = await ada('POST', `/orgs/${org.body.id}/projects`, { name: 'once' }, withKey('project'));
    const key = await ada('POST', `/projects/${project.body.id}/api-keys`, undefined, withKey('key'));
    for (const crash of [false, true]) {
      if (crash) await cutOff();
      assert.equal((await ada('POST', '/orgs', { name: 'once' }, withKey('org'))).text, org.text);
      assert.equal(
        (await ada('POST', `/orgs/${org.body.id}/projects`, { name: 'once' }, withKey('project'))).text,
        project.text,
      );
      assert.equal(
        (await ada('POST', `/projects/${project.body.id}/api-keys`, undefined, withKey('key'))).text,
        key.text,
      );
    }
    const works = caller(() => world.url, String(key.body.token), '');
    assert.equal((await works('GET', '/vms')).status, 200, 'the key was not replaced by its repetition');
    assert.equal(
      (await ada('GET', '/orgs')).body.organizations.filter((one: { name: string }) => one.name === 'once')
        .length,
      1,
    );
    const other = await (await world.as('eve'))('POST', '/orgs', { name: 'once' }, withKey('org'));
    assert.notEqual(other.body.id, org.body.id, "another user's key is another key");
  });

  it('makes forks and snapshots once, too', async () => {
    const { orgId, key } = await world.tenant(ada, 'forks');
    await grant(orgId, '100', 'for forks');
    const source = await key('POST', '/vms', { image: 'busybox', persistent: true });
    await waitFor(key, source.body.vm_id, 'running');
    const fork = await key('POST', `/vms/${source.body.vm_id}/fork`, {}, withKey('fork'));
    assert.equal(fork.status, 200, fork.text);
    const snapshot = await key(
      'POST',
      `/vms/${source.body.vm_id}/snapshots`,
      { name: 'one', kind: 'full' },
      withKey('snapshot'),
    );
    assert.equal(snapshot.status, 200, snapshot.text);
    await cutOff();
    const forkAgain = await key('POST', `/vms/${source.body.vm_id}/fork`, {}, withKey('fork'));
    assert.equal(forkAgain.text, fork.text);
    const snapshotAgain = await key(
      'POST',
      `/vms/${source.body.vm_id}/snapshots`,
      { name: 'one', kind: 'full' },
      withKey('snapshot'),
    );
    assert.deepEqual(
      [snapshotAgain.body.id, snapshotAgain.body.job_id],
      [snapshot.body.id, snapshot.body.job_id],
    );
    const { body } = await key('GET', '/vms');
    assert.equal(body.vms.length, 2);
  });
});
