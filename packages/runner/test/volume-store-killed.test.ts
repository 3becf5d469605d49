/** The store of a deployment is a real S3 server, which is killed while a host uses it for a volume. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { startS3Server } from '@releap/testing/s3-server';
import { startWorld, until } from '@releap/testing/world';
import { FailingProxy } from './support/failing-proxy.ts';
import { cleanUpBelow, volumeHost } from './support/volume-hosts.ts';

const MIB = 2 ** 20;
/** More than one pack of 16 MiB: each is uploaded in parts. */
const FILE_BYTES = 5 * MIB;
const FILES = ['1', '2', '3', '4', '5'];

test('a volume loses nothing when the S3 server is killed during a commit and during a checkout', async () => {
  const signal = AbortSignal.timeout(600_000);
  await using cleanup = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'releap-volume-store-'));
  cleanup.defer(async () => {
    await cleanUpBelow(dir);
    await rm(dir, { recursive: true, force: true });
  });
  let s3 = await startS3Server(dir);
  cleanup.defer(() => s3[Symbol.asyncDispose]());
  const options = await s3.bucket('volumes');
  const proxy = await FailingProxy.start(() => s3.endpoint);
  cleanup.defer(() => proxy.close());
  const world = await startWorld({ builtinImages: [], store: { ...options, endpoint: proxy.url } });
  cleanup.use(world);
  const timing = { closeWaitMs: 100, outageMs: 600_000 };
  const [a, b] = [await volumeHost(world, dir, { timing }), await volumeHost(world, dir, { timing })];
  cleanup.defer(async () => {
    for (const { copies } of [a, b]) {
      await copies.detach();
      await copies.unmount();
    }
  });
  const { body } = await world.call('POST', '/volumes', { name: 'data', size_gb: 1 });
  const id = body.id as string;
  for (const { id: runnerId, runner } of [a, b]) {
    const assigned = 'insert into volume_copies (volume_id, runner_id) values ($1, $2)';
    await world.database.pool.query(assigned, [id, runnerId]);
    runner.drop();
    await runner.connect();
    await until(() => runner.volumes.has(id));
  }
  const errorReason = async (): Promise<unknown> =>
    (await world.call('GET', `/volumes/${id}`)).body.error_reason;
  const reasons = async (): Promise<string[]> => {
    const { body: history } = await world.call('GET', `/volumes/${id}/manifests`);
    return (history.manifests as { reason: string }[]).map(({ reason }) => reason);
  };

  const { data } = await a.copies.open(id, 's', signal);
  await writeFile(join(data, 'first'), 'first');
  await a.copies.close(id, 's');
  await until(() => a.copies.get(id).isCache);
  await a.copies.open(id, 's', signal);
  for (const name of FILES) await writeFile(join(data, name), randomBytes(FILE_BYTES));
  await rm(join(data, 'first'));
  const written = await digests(data);

  // In the middle of a pack: parts of it are stored, and others are not.
  const kills: Promise<void>[] = [];
  let uploaded = 0;
  proxy.answer = (asked) => {
    if (asked.method === 'PUT')
      asked.on('data', (chunk: Buffer) => {
        if ((uploaded += chunk.length) > 12 * MIB && kills.length === 0)
          kills.push(s3[Symbol.asyncDispose]());
      });
    return undefined;
  };
  await a.copies.close(id, 's');
  await until(async () => typeof (await errorReason()) === 'string');
  assert.equal(kills.length, 1);
  await kills[0];
  proxy.answer = undefined;
  assert.notEqual(a.copies.get(id).state.dirtySince, undefined);
  assert.deepEqual(await reasons(), ['detach']);
  assert.deepEqual((await a.copies.open(id, 's', signal)).data, data, 'a sandbox on the host that has it');
  assert.deepEqual(await digests(data), written);

  s3 = await startS3Server(dir);
  await a.copies.close(id, 's');
  await until(() => a.copies.get(id).state.dirtySince === undefined);
  await until(async () => (await errorReason()) === undefined);
  assert.deepEqual(await reasons(), ['detach', 'detach']);

  proxy.answer = ({ method }) => {
    if (method === 'GET' && kills.length === 1) kills.push(s3[Symbol.asyncDispose]());
    return undefined;
  };
  const opened = b.copies.open(id, 's', signal);
  await until(() => kills.length === 2);
  await kills[1];
  s3 = await startS3Server(dir);
  assert.deepEqual(await digests((await opened).data), written);
  await b.copies.close(id, 's');
});

async function digests(folder: string): Promise<Record<string, string>> {
  const names = await readdir(folder);
  return Object.fromEntries(
    await Promise.all(
      names.sort().map(async (name) => {
        const content = await readFile(join(folder, name));
        return [name, createHash('sha256').update(content).digest('hex')] as const;
      }),
    ),
  );
}
