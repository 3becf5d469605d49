/** Root images that are made of the layers as they lie. That guests boot from them is tested in `test/registry-image`. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { type Item, run, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { startRegistry, type TestRegistry } from '@releap/testing/registry';
import type { RootImage } from '../src/image/image-store.ts';
import { planStack } from '../src/image/image-stack.ts';
import { assertTidy, openTestStore, type TestStore } from './support/test-store.ts';

/** The two largest layers of any image. */
const STACKED = { stackBytes: 1, stackLayerBytes: 10_000, stackLayers: 2 };

let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
let registry: TestRegistry;
let serial = 0;

before(async () => {
  scratch = await temporaryFolder();
  const folder = path.join(scratch.path, 'registry');
  await mkdir(folder);
  registry = await startRegistry(folder);
});
after(async () => {
  await registry[Symbol.asyncDispose]();
  await scratch[Symbol.asyncDispose]();
});

function openStore(limits: Parameters<typeof openTestStore>[1] = {}): TestStore {
  serial += 1;
  return openTestStore(path.join(scratch.path, `cache-${serial}`), { ...STACKED, ...limits });
}

async function push(name: string, layers: readonly (readonly Item[])[]): Promise<string> {
  const layout = path.join(scratch.path, `layout-${name}`);
  await writeOciLayout(layout, await Promise.all(layers.map(tarOf)));
  registry.push(layout, `${name}:1`);
  return `${registry.host}/${name}:1`;
}

const ensure = async (store: TestStore, ref: string): Promise<RootImage> =>
  await store.ensure({ type: 'registry', ref });

const inodeOf = async (file: string): Promise<number> => (await stat(file)).ino;
const cat = (image: RootImage, name: string): string => run('unsquashfs', ['-cat', image.path, name]);

const LARGE: Item[] = [
  { name: 'large', content: Buffer.alloc(50_000, 'large') },
  { name: 'changed', content: 'below' },
  { name: 'gone', content: Buffer.alloc(20_000, 'g') },
];
const LARGER: Item[] = [
  { name: 'larger', content: Buffer.alloc(70_000, 'larger') },
  { name: 'link', type: 'link', linkname: 'large' },
  { name: 'changed', content: 'above' },
  { name: '.wh.gone', content: '' },
];

test('the largest layers are parts of the disk, at most as many as allowed, and none of a small image', () => {
  const limits = { stackBytes: 100, stackLayerBytes: 20, stackLayers: 2 };
  assert.deepEqual(planStack([30, 10, 5000, 60], limits), {
    layers: [
      { index: 2, at: 4096, bytes: 5000 },
      { index: 3, at: 4096 + 8192, bytes: 60 },
    ],
    tail: 4096 + 8192 + 4096,
  });
  assert.equal(planStack([50, 49], limits), undefined);
  assert.equal(planStack([19, 19, 19, 19, 19, 19], limits), undefined);
  assert.equal(planStack([], limits), undefined);
});

test('images that share layers store them once, and are whole in one file with the same content', async () => {
  await using store = openStore();
  const one = await ensure(store, await push('one', [LARGE, LARGER, [{ name: 'own', content: '1' }]]));
  const two = await ensure(store, await push('two', [LARGE, LARGER, [{ name: 'own', content: '2' }]]));
  const archives = await readdir(path.join(store.images, 'layers'));
  assert.equal(archives.filter((name) => name.endsWith('.tar')).length, 4);
  assert.equal(archives.filter((name) => name.endsWith('.index')).length, 4);
  const kept = await Promise.all(archives.map((name) => inodeOf(path.join(store.images, 'layers', name))));
  for (const part of [0, 1]) {
    const [ofOne, ofTwo] = await Promise.all(
      [one, two].map(({ path: file }) => inodeOf(path.join(path.dirname(file), `layer-${part}.tar`))),
    );
    assert.equal(ofOne, ofTwo);
    assert.ok(ofOne !== undefined && kept.includes(ofOne));
  }
  // A jail has a copy of each name, and no other file may be in its place.
  assert.match(await readFile(two.path, 'utf8'), /^RW \d+ FLAT "\/root\.part-layer-1\.tar" 0$/m);
  assert.deepEqual(
    two.parts?.map((file) => path.basename(file)),
    ['root.head', 'layer-0.tar', 'layer-1.tar'],
  );

  const whole = await store.whole(two.digest);
  assert.equal(whole.parts, undefined);
  assert.equal((await stat(whole.path)).size, two.sizeBytes);
  assert.equal(cat(whole, 'large'), String(Buffer.alloc(50_000, 'large')));
  assert.equal(cat(whole, 'link'), String(Buffer.alloc(50_000, 'large')));
  assert.equal(cat(whole, 'larger'), String(Buffer.alloc(70_000, 'larger')));
  assert.equal(cat(whole, 'changed'), 'above');
  assert.equal(cat(whole, 'own'), '2');
  assert.ok(!run('unsquashfs', ['-l', whole.path]).includes('gone'));
  assert.deepEqual(await store.find(two.digest), whole);
  assert.deepEqual(await store.find(one.digest), one);

  // Without a valid index, the headers are read.
  for (const name of archives.filter((file) => file.endsWith('.index')))
    await writeFile(path.join(store.images, 'layers', name), 'damaged');
  const three = await ensure(store, await push('three', [LARGE, LARGER, [{ name: 'own', content: '3' }]]));
  assert.equal(cat(await store.whole(three.digest), 'changed'), 'above');
  await assertTidy(store);
});

test('an image in one file is on the disk before it is handed out', async () => {
  for (const limits of [{}, { stackBytes: Number.POSITIVE_INFINITY }]) {
    await using store = openStore(limits);
    const image = await ensure(store, await push(`durable-${serial}`, [LARGE]));
    const mark = path.join(path.dirname(image.path), 'unsynced');
    await store.whole(image.digest);
    assert.ok(!existsSync(mark));
    await assert.rejects(store.whole(`sha256:${'0'.repeat(64)}`), /is not on this host/);
  }
});

test('a stacked image without one of its parts is made again', async () => {
  await using store = openStore();
  const ref = await push('damaged', [LARGE]);
  const image = await ensure(store, ref);
  await rm(path.join(path.dirname(image.path), 'layer-0.tar'));
  await using later = openTestStore(path.dirname(store.images), STACKED);
  assert.equal(await later.find(image.digest), undefined);
  assert.deepEqual(await ensure(later, ref), image);
});

test('what images share counts once, and stays as long as one of them does', async () => {
  await using store = openStore();
  const one = await ensure(store, await push('gc-one', [LARGE, [{ name: 'own', content: '1' }]]));
  const two = await ensure(store, await push('gc-two', [LARGE, [{ name: 'own', content: '2' }]]));
  const { images, layers } = await store.stats();
  const shared = (await stat(path.join(path.dirname(one.path), 'layer-0.tar'))).size;
  assert.equal(images.bytes, one.sizeBytes + two.sizeBytes - shared - 2 * ((4096 - (shared % 4096)) % 4096));
  assert.equal(layers.count, 3);
  const longAgo = new Date(Date.now() - 24 * 3600_000);
  await utimes(path.join(path.dirname(one.path), 'used'), longAgo, longAgo);
  await using tight = openTestStore(path.dirname(store.images), { ...STACKED, cacheBytes: 1, layerBytes: 0 });
  // The layer remains with the second image, and its name for further pulls with it.
  assert.ok((await tight.gc()) < shared);
  assert.equal(await tight.find(one.digest), undefined);
  assert.deepEqual(await tight.find(two.digest), two);
  assert.equal((await tight.stats()).layers.count, 1);
  assert.equal(cat(await tight.whole(two.digest), 'changed'), 'below');
});
