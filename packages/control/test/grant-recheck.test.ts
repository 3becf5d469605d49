import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { openFresh } from '@releap/testing/postgres';
import { GrantIndex } from '../src/edge/gateways/grant-index.ts';
import { forgetGrantChanges, GrantRecheck } from '../src/edge/gateways/recheck.ts';
import type { GrantedCredential, Resolved } from '../src/edge/gateways/target-resolver.ts';
import { mintApiKey } from '../src/platform/auth/api-keys.ts';
import { newOrg, newRunner, newSandbox } from './support/billing.ts';

const database = await openFresh();

/** A grant of everything that one may depend on, and how it was revoked: undefined while it is not. */
async function grant(of: { expiresAt?: Date; isFunction?: boolean } = {}) {
  const { projectId } = await newOrg(database);
  const [runnerId, key] = [await newRunner(database), await mintApiKey(database.pool, projectId, 'k')];
  const sandboxId = await newSandbox(database, projectId, { runnerId });
  const [endpointId, functionId] = [newUuid(), newUuid()];
  const link = Buffer.alloc(32, newUuid()).toString('hex');
  await database.pool.query(
    'insert into endpoints (id, sandbox_id, project_id, port, public) values ($1, $2, $3, 80, false)',
    [endpointId, sandboxId, projectId],
  );
  await database.pool.query(
    `insert into preview_links (digest, endpoint_id, expires_at) values (decode($1, 'hex'), $2, now() + interval '1 hour')`,
    [link, endpointId],
  );
  await database.pool.query(
    `insert into functions (id, project_id, name, region, latest_version) values ($1, $2, 'f', 'here', 1)`,
    [functionId, projectId],
  );
  const index = new GrantIndex();
  const ended: boolean[] = [];
  const credentials = {
    apiKey: { type: 'apiKey', keyId: key.id, projectId },
    link: { type: 'preview', projectId, link },
  };
  const hold = (credential: keyof typeof credentials): void => {
    const expiry = of.expiresAt === undefined ? {} : { expiresAt: of.expiresAt };
    const granted = credentials[credential] as GrantedCredential;
    const resolved = (
      of.isFunction === true
        ? { function: { id: functionId, revision: 1 }, credential: granted, ...expiry }
        : {
            sandboxId,
            runnerId,
            dataUrl: '',
            credential: granted,
            endpoint: { id: endpointId, public: false },
            ...expiry,
          }
    ) as Resolved;
    index.add({ subject: sandboxId, resolved, revoke: (disconnect) => void ended.push(disconnect) });
  };
  const recheck = new GrantRecheck(database, index);
  // The first pass looks at all of them: what follows must be found by what was recorded.
  await recheck.pass();
  const change = async (sql: string, id: string): Promise<boolean | undefined> => {
    await database.pool.query(sql, [id]);
    await recheck.pass();
    return ended[0];
  };
  return {
    change,
    hold,
    recheck,
    ended,
    ids: { key: key.id, projectId, endpointId, link, runnerId, functionId },
  };
}

describe('a grant is revoked by the next pass', () => {
  const CHANGES = [
    ['its key is revoked', 'key', 'update api_keys set revoked_at = now() where id = $1', true],
    ['its key is removed', 'key', 'delete from api_keys where id = $1', true],
    ['its project is deleted', 'projectId', 'update projects set deleted_at = now() where id = $1', true],
    ['its endpoint is removed', 'endpointId', 'delete from endpoints where id = $1', true],
    ['its endpoint becomes public', 'endpointId', 'update endpoints set public = true where id = $1', false],
    ['its host is forgotten', 'runnerId', 'update runners set forgotten_at = now() where id = $1', true],
    [
      'its host has another address',
      'runnerId',
      `update runners set data_url = 'unix:/x' where id = $1`,
      false,
    ],
  ] as const;
  for (const [name, what, sql, disconnects] of CHANGES)
    it(`when ${name}`, async () => {
      const one = await grant();
      one.hold('apiKey');
      assert.equal(await one.change(sql, one.ids[what]), disconnects);
    });

  it('when its link is ended', async () => {
    const one = await grant();
    one.hold('link');
    assert.equal(
      await one.change(`delete from preview_links where digest = decode($1, 'hex')`, one.ids.link),
      true,
    );
  });

  it('when its function has another revision, or is deleted', async () => {
    for (const sql of [
      'update functions set revision = revision + 1 where id = $1',
      'delete from functions where id = $1',
    ]) {
      const one = await grant({ isFunction: true });
      one.hold('apiKey');
      assert.equal(await one.change(sql, one.ids.functionId), false);
    }
  });

  it('when its credential expires', async () => {
    const one = await grant({ expiresAt: new Date(Date.now() - 1) });
    one.hold('link');
    await one.recheck.pass();
    assert.deepEqual(one.ended, [true]);
  });

  it('and not when nothing that it depends on has changed', async () => {
    const [one, other] = [await grant(), await grant()];
    one.hold('apiKey');
    other.hold('apiKey');
    assert.equal(
      await other.change('update api_keys set revoked_at = now() where id = $1', other.ids.key),
      true,
    );
    await one.recheck.pass();
    assert.deepEqual(one.ended, []);
  });
});

it('changes that every server has seen are forgotten', async () => {
  await database.pool.query(
    `insert into grant_changes (subject, at) select 'old', now() - interval '1 hour' from generate_series(1, 12)`,
  );
  await database.pool.query(`insert into grant_changes (subject) values ('new')`);
  await forgetGrantChanges(database, new AbortController().signal);
  const { rows } = await database.pool.query(
    `select subject from grant_changes where subject in ('old', 'new')`,
  );
  assert.deepEqual(rows, [{ subject: 'new' }]);
});
