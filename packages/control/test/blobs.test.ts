/** Blobs with their rows: garbage collection, and what a runner may read. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, it } from 'node:test';
import { newUuid } from '@releap/contract';
import { credentialOf } from '@releap/testing/credentials';
import { quiet, startWorld } from '@releap/testing/world';
import { collectBlobGarbage } from '../src/storage/artifacts/blob-garbage.ts';
import type { BlobStore } from '../src/storage/artifacts/blob-store.ts';
import type { Module } from '../src/platform/module.ts';

const DAY_MS = 24 * 3_600_000;
const never = new AbortController().signal;

/** As modules have it. */
let blobs: BlobStore;
const world = await startWorld({
  builtinImages: [],
  modules: [
    (context): Module => {
      blobs = context.blobs;
      return { name: 'looks' };
    },
  ],
});
const runner = await world.runner({ build: () => undefined });

async function put(text: string): Promise<string> {
  const content = async function* (): AsyncGenerator<Uint8Array> {
    yield Buffer.from(text);
  };
  return (await blobs.put(content(), { maxBytes: 1000 })).digest;
}

const collect = (store = blobs): Promise<number> =>
  collectBlobGarbage({ database: world.database, store, graceMs: DAY_MS, log: quiet }, never);

async function age(digest: string): Promise<void> {
  await world.database.pool.query(
    `update blobs set touched_at = now() - interval '2 days' where digest = $1`,
    [digest],
  );
}

/** An image with this build context. */
async function imageOf(digest: string): Promise<string> {
  const id = newUuid();
  await world.database.pool.query(
    `insert into images (id, name, source, status, job_id) values ($1, $2, $3, 'pending', $4)`,
    [
      id,
      `with-context-${id}`,
      JSON.stringify({ type: 'dockerfile', context: { digest, bytes: 1 } }),
      newUuid(),
    ],
  );
  return id;
}

describe('garbage collection of blobs', () => {
  it('removes a blob that no row names, after its grace period', async () => {
    const digest = await put('unnamed');
    assert.equal(await collect(), 0);
    assert.notEqual(await blobs.stat(digest), undefined);
    await age(digest);
    assert.equal(await collect(), 1);
    assert.equal(await blobs.stat(digest), undefined);
  });

  it('keeps a blob as long as an image or a build in progress names it', async () => {
    const digest = await put('a context');
    const image = await imageOf(digest);
    await age(digest);
    assert.equal(await collect(), 0);
    const job = newUuid();
    await world.database.pool.query(
      `insert into jobs (id, kind, status, image_id, payload) values ($1, 'build', 'queued', $2, $3)`,
      [job, image, JSON.stringify({ root: { type: 'dockerfile', context: { digest, bytes: 1 } } })],
    );
    await world.database.pool.query('update images set source = $2 where id = $1', [
      image,
      JSON.stringify({ type: 'builtin', name: 'none' }),
    ]);
    assert.equal(await collect(), 0);
    await world.database.pool.query(`update jobs set status = 'failed' where id = $1`, [job]);
    assert.equal(await collect(), 1);
    await world.database.pool.query('delete from images where id = $1', [image]);
  });

  it('gives a blob that is uploaded again a new grace period', async () => {
    const digest = await put('twice');
    await age(digest);
    await put('twice');
    assert.equal(await collect(), 0);
    await age(digest);
    assert.equal(await collect(), 1);
  });

  it('loses no blob that is uploaded while it is removed', async () => {
    const digest = await put('at the same time');
    await age(digest);
    let uploaded: Promise<string | undefined> | undefined;
    const slow: BlobStore = {
      ...blobs,
      async delete(one) {
        // The upload has begun, and waits for the end of the removal.
        uploaded = put('at the same time').catch(() => undefined);
        await new Promise((resolve) => setTimeout(resolve, 200));
        await blobs.delete(one);
      },
    };
    assert.equal(await collect(slow), 1);
    // It either is there again or the upload has failed: never is an upload acknowledged and its content gone.
    const again = await uploaded;
    if (again !== undefined) assert.notEqual(await blobs.stat(digest), undefined);
  });

  it('gives a blob without a row (the database was restored) a grace period', async () => {
    const digest = await put('restored');
    await world.database.pool.query('delete from blobs where digest = $1', [digest]);
    assert.equal(await collect(), 0);
    assert.notEqual(await blobs.stat(digest), undefined);
    await age(digest);
    assert.equal(await collect(), 1);
  });

  it('goes on past blobs that the store cannot delete, the oldest too, and tries them again', async () => {
    const stuck = await Promise.all(Array.from({ length: 101 }, (_, n) => put(`stuck ${n}`)));
    for (const digest of stuck) await age(digest);
    const digest = await put('after those that are stuck');
    await age(digest);
    const refusing: BlobStore = {
      ...blobs,
      async delete(one) {
        if (stuck.includes(one)) throw new Error('AccessDenied: object lock');
        await blobs.delete(one);
      },
    };
    await assert.rejects(collect(refusing), /101 blobs could not be removed/);
    assert.equal(await blobs.stat(digest), undefined);
    assert.equal(await collect(), 101);
  });

  it('repeats a removal that was interrupted', async () => {
    const digest = await put('interrupted');
    await age(digest);
    const killed: BlobStore = {
      ...blobs,
      async delete(one) {
        await blobs.delete(one);
        throw new Error('killed here');
      },
    };
    await assert.rejects(collect(killed), (error: Error) => /killed here/.test(String(error.cause)));
    assert.equal(await blobs.stat(digest), undefined);
    assert.equal(await collect(), 1);
    assert.equal(
      (await world.database.pool.query('select 1 from blobs where digest = $1', [digest])).rowCount,
      0,
    );
  });
});

describe('a runner that reads blobs', () => {
  const ask = (digest: string, id = runner.id): Promise<Response> =>
    fetch(`${world.internalUrl}/internal/blobs/${digest}`, {
      headers: { authorization: `Bearer ${credentialOf(id)}` },
    });

  it('gets the context of a build that is leased to it, and another runner does not', async () => {
    const text = 'the context of a build';
    const digest = await put(text);
    assert.equal((await ask(digest)).status, 404);
    const image = await imageOf(digest);
    await world.database.pool.query(
      `insert into jobs (id, kind, status, attempts, runner_id, lease_until, image_id, payload)
       values ($1, 'build', 'running', 1, $2, now() + interval '1 hour', $3, $4)`,
      [
        newUuid(),
        runner.id,
        image,
        JSON.stringify({
          root: { type: 'dockerfile', context: { digest, bytes: text.length } },
          docker: false,
        }),
      ],
    );
    const answer = await ask(digest);
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get('content-length'), String(text.length));
    const content = Buffer.from(await answer.arrayBuffer());
    assert.equal(`sha256:${createHash('sha256').update(content).digest('hex')}`, digest);
    const other = await world.runner();
    assert.equal((await ask(digest, other.id)).status, 404);
    assert.equal((await fetch(`${world.internalUrl}/internal/blobs/${digest}`)).status, 401);
  });

  it('gets 404 for what is no digest', async () => {
    for (const name of ['x', 'sha256:..', `sha256:${'0'.repeat(63)}`])
      assert.equal((await ask(encodeURIComponent(name))).status, 404);
  });
});
