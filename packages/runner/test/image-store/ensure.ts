/** Images that are fetched, published, shared and found again. */
import assert from 'node:assert/strict';
import { mkdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import type { ImageProgress } from '../../src/image/image-store.ts';
import { assertTidy, refuses } from '../support/test-store.ts';
import { run } from '@releap/testing/oci';
import { startRegistry } from '@releap/testing/registry';
import { scratch, openStore, push, from, archives } from '../support/image-store-world.ts';

test('an image is fetched, merged and published with its configuration', async () => {
  await using store = openStore();
  const { ref, digest } = await push(
    'first:1',
    { 'etc/one': '1', 'etc/two': '2' },
    {
      config: {
        Entrypoint: ['/init'],
        Cmd: ['serve'],
        Env: ['A=1', 'B=x=y', 'A=2', 'broken'],
        User: '1000:1000',
        WorkingDir: '/srv',
        ExposedPorts: { '8080/tcp': {}, '53/udp': {}, 'bad/x': {} },
        StopSignal: 'SIGINT',
      },
    },
  );
  const progress: ImageProgress[] = [];
  const image = await store.ensure(from(ref), { onProgress: (step) => progress.push(step) });
  assert.equal(image.digest, digest);
  assert.equal(image.layerCount, 2);
  assert.deepEqual(image.config, {
    entrypoint: ['/init'],
    cmd: ['serve'],
    env: { A: '2', B: 'x=y' },
    user: '1000:1000',
    workingDir: '/srv',
    exposedPorts: [
      { port: 8080, proto: 'tcp' },
      { port: 53, proto: 'udp' },
    ],
    stopSignal: 'SIGINT',
  });
  assert.equal((await stat(image.path)).size, image.sizeBytes);
  assert.match(run('unsquashfs', ['-ll', image.path]), /squashfs-root\/etc\/two/);
  const phases = [...new Set(progress.map(({ phase }) => phase))];
  assert.deepEqual(
    phases,
    ['resolve', 'wait', 'pull', 'unpack', 'write', 'publish'].filter((phase) =>
      phases.includes(phase as never),
    ),
  );
  assert.deepEqual(await store.find(digest), image);
  assert.equal(await store.has(from(ref)), true);
  await assertTidy(store);
});

test('every way to pack a layer gives the same tree', async () => {
  await using store = openStore();
  for (const compression of ['gzip', 'zstd', 'none'] as const) {
    const { ref } = await push(`packed:${compression}`, { 'a/b': 'hello' }, { compression });
    const image = await store.ensure(from(ref));
    assert.equal(run('unsquashfs', ['-cat', image.path, 'a/b']), 'hello', compression);
  }
});

test('a cached image costs neither a child process nor a request', async () => {
  await using store = openStore();
  const own = path.join(scratch.path, 'own-registry');
  await mkdir(own);
  await using gone = await startRegistry(own);
  const { ref, digest } = await push('hot:1', { a: 'a' }, {}, gone);
  const image = await store.ensure(from(ref));
  await gone.stop();
  // Resolved lately; pinned by control; pinned by the user while the image is public.
  assert.deepEqual(await store.ensure(from(ref)), image);
  assert.deepEqual(await store.ensure(from(ref, { digest })), image);
  await using later = openStore(path.dirname(store.images));
  assert.deepEqual(await later.ensure(from(ref, { digest })), image);
  assert.deepEqual(await later.ensure(from(`${gone.host}/hot@${digest}`)), image);
  // A tag has to be asked for.
  await refuses(later.ensure(from(ref)), 'unreachable', /cannot be reached for localhost:\d+\/hot:1/);
  assert.equal(await later.has(from(ref)), false);
});

test('concurrent callers in two processes make it once', async () => {
  await using first = openStore();
  await using second = openStore(path.dirname(first.images));
  const { ref } = await push('crowd:1', { a: 'a' });
  let made = 0;
  const onProgress = ({ phase }: ImageProgress): void => {
    if (phase === 'publish') made += 1;
  };
  const images = await Promise.all(
    [first, first, first, second, second].map(
      async (store, index) => await store.ensure(from(ref), index % 3 === 0 ? { onProgress } : {}),
    ),
  );
  assert.equal(new Set(images.map(({ digest }) => digest)).size, 1);
  assert.equal(made, 1);
  await assertTidy(first);
});

test('a caller that stops waiting does not end the work for the others', async () => {
  await using store = openStore();
  const { ref } = await push('patient:1', { a: 'a' });
  const impatient = new AbortController();
  const lost = store.ensure(from(ref), { signal: impatient.signal });
  const kept = store.ensure(from(ref));
  impatient.abort();
  await refuses(lost, 'aborted', /cancelled/);
  assert.ok((await kept).sizeBytes > 0);
});

test('a layer that two images share is stored once', async () => {
  const shared = 'x'.repeat(100_000);
  const one = await push('share:1', { base: shared, one: '1' });
  const two = await push('share:2', { base: shared, two: '2' }, { compression: 'zstd' });
  await using store = openStore();
  await store.ensure(from(one.ref));
  assert.equal((await archives(store)).length, 2);
  await store.ensure(from(two.ref));
  assert.equal((await archives(store)).length, 3);
});
