/** The same behaviour of both stores: a folder, and a bucket of a real S3 server. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { ListMultipartUploadsCommand } from '@aws-sdk/client-s3';
import { startS3Server, type S3StoreOptions, type TestS3Server } from '@releap/testing/s3-server';
import { BlobError, type BlobStore } from '../src/storage/artifacts/blob-store.ts';
import { openStore } from '../src/storage/artifacts/open-store.ts';

const DEPLOYMENT = '6f1ed002-ab5d-4f1c-9e35-000000000002';
const MIB = 1024 * 1024;

async function* chunksOf(content: Buffer, bytes = 64 * 1024): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < content.length; at += bytes) yield content.subarray(at, at + bytes);
}
const digestOf = (content: Buffer): string => `sha256:${createHash('sha256').update(content).digest('hex')}`;

async function read(store: BlobStore, digest: string): Promise<Buffer | undefined> {
  const found = await store.get(digest);
  if (found === undefined) return undefined;
  const content = Buffer.concat(await found.content.toArray());
  assert.equal(content.length, found.bytes);
  return content;
}

async function digestsOf(store: BlobStore): Promise<string[]> {
  const digests: string[] = [];
  for await (const { digest } of store.list()) digests.push(digest);
  return digests.sort();
}

function behaves(open: () => Promise<BlobStore>, unfinished: () => Promise<number>): void {
  let store: BlobStore;
  before(async () => (store = await open()));

  for (const bytes of [0, 1, 1000, 8 * MIB, 20 * MIB + 1]) {
    for (const stated of [true, false]) {
      it(`stores and returns ${bytes} bytes, ${stated ? 'with' : 'without'} a stated digest`, async () => {
        const content = randomBytes(bytes);
        const digest = digestOf(content);
        const put = await store.put(chunksOf(content), {
          maxBytes: bytes,
          ...(stated ? { digest } : {}),
        });
        assert.deepEqual(put, { digest, bytes });
        assert.deepEqual(await store.stat(digest), { bytes });
        assert.equal((await read(store, digest))?.equals(content), true);
        await store.delete(digest);
        assert.equal(await store.stat(digest), undefined);
        assert.equal(await store.get(digest), undefined);
      });
    }
  }

  it('refuses content with another digest, small and in parts, and keeps nothing of it', async () => {
    for (const bytes of [100, 17 * MIB]) {
      const digest = digestOf(Buffer.from('another'));
      await assert.rejects(
        store.put(chunksOf(randomBytes(bytes)), { maxBytes: bytes, digest }),
        (error) => error instanceof BlobError && error.failure === 'digest',
      );
      assert.equal(await store.stat(digest), undefined);
    }
    assert.equal(await unfinished(), 0);
  });

  it('refuses content that is larger than allowed, and does not read it to its end', async () => {
    for (const stated of [true, false]) {
      let ended = false;
      const endless = async function* (): AsyncGenerator<Uint8Array> {
        try {
          for (;;) yield Buffer.alloc(MIB);
        } finally {
          ended = true;
        }
      };
      await assert.rejects(
        store.put(endless(), {
          maxBytes: 18 * MIB,
          ...(stated ? { digest: digestOf(Buffer.from('endless')) } : {}),
        }),
        (error) =>
          error instanceof BlobError && error.failure === 'too-large' && /18874368/.test(error.message),
      );
      assert.equal(ended, true);
    }
    assert.equal(await unfinished(), 0);
  });

  it('keeps nothing of an upload whose source breaks, that is aborted, or whose check fails', async () => {
    const content = randomBytes(17 * MIB);
    const digest = digestOf(content);
    const broken = async function* (): AsyncGenerator<Uint8Array> {
      yield* chunksOf(content.subarray(0, 16 * MIB));
      throw new Error('the sender is gone');
    };
    await assert.rejects(store.put(broken(), { maxBytes: 17 * MIB, digest }), /the sender is gone/);
    const controller = new AbortController();
    const aborting = async function* (): AsyncGenerator<Uint8Array> {
      yield* chunksOf(content.subarray(0, 16 * MIB));
      controller.abort(new Error('no longer wanted'));
      yield* chunksOf(content.subarray(16 * MIB));
    };
    await assert.rejects(
      store.put(aborting(), { maxBytes: 17 * MIB, digest, signal: controller.signal }),
      /no longer wanted/,
    );
    const onVerified = (): Promise<void> => Promise.reject(new Error('not written down'));
    for (const stated of [true, false]) {
      await assert.rejects(
        store.put(chunksOf(content), { maxBytes: 17 * MIB, onVerified, ...(stated ? { digest } : {}) }),
        /not written down/,
      );
    }
    assert.equal(await store.stat(digest), undefined);
    assert.equal(await unfinished(), 0);
  });

  it('says what it stores before it is visible', async () => {
    const content = randomBytes(9 * MIB);
    const digest = digestOf(content);
    const seen: unknown[] = [];
    const onVerified = async (blob: unknown): Promise<void> => {
      seen.push(blob, await store.stat(digest));
    };
    await store.put(chunksOf(content), { maxBytes: 9 * MIB, digest, onVerified });
    assert.deepEqual(seen, [{ digest, bytes: content.length }, undefined]);
    await store.delete(digest);
  });

  it('is stored once by several who upload the same at the same time', async () => {
    const content = randomBytes(3 * MIB);
    const digest = digestOf(content);
    await Promise.all(
      [1, 2, 3].map((n) =>
        store.put(chunksOf(content, n * 1000), { maxBytes: 3 * MIB, ...(n === 1 ? {} : { digest }) }),
      ),
    );
    assert.equal((await read(store, digest))?.equals(content), true);
    assert.deepEqual(await digestsOf(store), [digest]);
    await store.delete(digest);
  });

  it('lists all blobs, and deletes what is not there', async () => {
    const contents = Array.from({ length: 5 }, () => randomBytes(10));
    for (const content of contents) await store.put(chunksOf(content), { maxBytes: 10 });
    assert.deepEqual(await digestsOf(store), contents.map(digestOf).sort());
    for (const content of contents) await store.delete(digestOf(content));
    await store.delete(digestOf(Buffer.from('never there')));
    assert.deepEqual(await digestsOf(store), []);
  });

  it('takes nothing but a digest for a name', async () => {
    for (const name of ['../../etc/passwd', 'sha256:../x', `sha256:${'A'.repeat(64)}`, '']) {
      await assert.rejects(async () => store.get(name), TypeError);
      await assert.rejects(async () => store.delete(name), TypeError);
    }
  });
}

describe('the store in a folder', () => {
  let folder: string;
  before(async () => (folder = await mkdtemp(path.join(tmpdir(), 'releap-folder-'))));
  after(() => rm(folder, { recursive: true, force: true }));
  const incoming = (): string => path.join(folder, DEPLOYMENT, 'incoming');
  const unfinished = async (): Promise<number> => (await readdir(incoming())).length;

  behaves(() => openStore({ type: 'folder', path: folder }, DEPLOYMENT), unfinished);

  it('removes what an upload that was killed has left, and not what is being uploaded', async () => {
    const store = await openStore({ type: 'folder', path: folder }, DEPLOYMENT);
    await writeFile(path.join(incoming(), 'left'), 'half');
    assert.equal(await store.removeUnfinished(new Date(Date.now() - 60_000)), 0);
    assert.equal(await store.removeUnfinished(new Date(Date.now() + 60_000)), 1);
    assert.equal(await unfinished(), 0);
  });

  it('does not see the blobs of another deployment', async () => {
    const store = await openStore({ type: 'folder', path: folder }, DEPLOYMENT);
    const { digest } = await store.put(chunksOf(Buffer.from('mine')), { maxBytes: 4 });
    const other = await openStore({ type: 'folder', path: folder }, `${DEPLOYMENT.slice(0, -1)}3`);
    assert.equal(await other.stat(digest), undefined);
    assert.deepEqual(await digestsOf(other), []);
    await store.delete(digest);
  });
});

describe('the store in a bucket', () => {
  let folder: string;
  let server: TestS3Server;
  let options: S3StoreOptions;
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'releap-s3-'));
    server = await startS3Server(folder);
    options = await server.bucket('blobs');
  });
  after(async () => {
    await server[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });
  const unfinished = async (): Promise<number> => {
    const { Uploads } = await server.client.send(new ListMultipartUploadsCommand({ Bucket: 'blobs' }));
    return (Uploads ?? []).length + (await readdir(options.spoolFolder).catch(() => [])).length;
  };

  behaves(() => openStore(options, DEPLOYMENT), unfinished);

  it('removes what an upload that was killed has left', async () => {
    const store = await openStore(options, DEPLOYMENT);
    // Never ends: as a process that was killed.
    const stuck = async function* (): AsyncGenerator<Uint8Array> {
      yield* chunksOf(randomBytes(9 * MIB));
      await new Promise(() => undefined);
    };
    // Its part may still be on the way when the upload is removed, which is then an error of the part.
    store.put(stuck(), { maxBytes: 20 * MIB, digest: digestOf(Buffer.from('stuck')) }).catch(() => undefined);
    while ((await unfinished()) === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    assert.equal(await store.removeUnfinished(new Date(Date.now() - 3_600_000)), 0);
    assert.equal(await store.removeUnfinished(new Date(Date.now() + 3_600_000)), 1);
    assert.equal(await unfinished(), 0);
  });

  it('reads its credentials from a file, and names none of them when they are wrong', async () => {
    const file = path.join(folder, 'credentials.json');
    const write = (secret: string): Promise<void> =>
      writeFile(
        file,
        JSON.stringify({ access_key_id: server.credentials.accessKeyId, secret_access_key: secret }),
      );
    await write(server.credentials.secretAccessKey);
    const store = await openStore({ ...options, credentials: { file } }, DEPLOYMENT);
    const { digest } = await store.put(chunksOf(Buffer.from('with a file')), { maxBytes: 100 });
    assert.notEqual(await store.stat(digest), undefined);
    await write('a-wrong-secret');
    const wrong = await openStore({ ...options, credentials: { file } }, DEPLOYMENT);
    await assert.rejects(wrong.get(digest), (error) => {
      assert.ok(error instanceof BlobError);
      assert.equal(error.failure, 'unavailable');
      assert.equal(error.message.includes('a-wrong-secret'), false);
      return true;
    });
    await store.delete(digest);
  });

  it('reports a service that cannot be reached', async () => {
    const store = await openStore({ ...options, endpoint: 'http://127.0.0.1:1' }, DEPLOYMENT);
    await assert.rejects(
      store.put(chunksOf(Buffer.from('x')), { maxBytes: 1 }),
      (error) => error instanceof BlobError && error.failure === 'unavailable',
    );
  });
});
