/** Images that do not keep their word. */
import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { assertTidy, refuses } from '../support/test-store.ts';
import { sha256 } from '@releap/testing/oci';
import { handmadeRegistry } from '@releap/testing/registry';
import { openStore, push, from } from '../support/image-store-world.ts';

test('a registry that sends another manifest or layer than its digest says is refused', async () => {
  const { digest, layout } = await push('honest:1', { a: 'honest content' });
  const blob = async (of: string): Promise<Buffer> =>
    await readFile(path.join(layout, 'blobs', 'sha256', of.slice(7)));
  const manifest = await blob(digest);
  const { layers, config } = JSON.parse(manifest.toString()) as {
    layers: [{ digest: string }];
    config: { digest: string };
  };
  const contents = new Map([
    [digest, manifest],
    [layers[0].digest, await blob(layers[0].digest)],
    [config.digest, await blob(config.digest)],
  ]);
  let lie = '';
  await using liar = await handmadeRegistry((asked, _request, response) => {
    const [kind, name = ''] = asked.split('/');
    const data = Buffer.from(contents.get(name === '1' ? digest : name) ?? '');
    if (name === lie || (lie === digest && kind === 'manifests')) data[data.length - 2] = 0x20;
    const type =
      kind === 'manifests' ? 'application/vnd.oci.image.manifest.v1+json' : 'application/octet-stream';
    response.writeHead(200, { 'content-type': type, 'content-length': data.length }).end(data);
  });
  await using store = openStore();
  for (const [lied, pattern] of [
    [digest, /whose digest is sha256:\w+, not sha256/],
    [layers[0].digest, /does not match its digest/],
    [config.digest, /does not match its digest/],
  ] as const) {
    lie = lied;
    await refuses(store.ensure(from(`${liar.host}/app@${digest}`)), 'lying-registry', pattern);
    await assertTidy(store);
  }
  lie = '';
  assert.equal((await store.ensure(from(`${liar.host}/app@${digest}`))).digest, digest);
});

test('a configuration that lies about its layers is refused, and another try fetches it again', async () => {
  await using store = openStore();
  const { ref } = await push('wrong-diff:1', { a: 'a' }, { diffIds: [sha256('something else')] });
  await refuses(
    store.ensure(from(ref)),
    'lying-registry',
    /wrong-diff:1: layer sha256:\w+ unpacks to sha256:\w+, but/,
  );
  const few = await push('few-diffs:1', { a: 'a' }, { diffIds: [] });
  await refuses(store.ensure(from(few.ref)), 'invalid-image', /has 1 layers, but its configuration names 0/);
  assert.equal(await store.find(few.digest), undefined);
  await assertTidy(store);
});

test('images that leave their folder, expand without bound or are invalid are refused with nothing left', async () => {
  await using store = openStore(undefined, { uncompressedBytes: 1 << 20 });
  const escape = await push('escape:1', { '../../etc/cron.d/x': 'x' });
  await refuses(
    store.ensure(from(escape.ref)),
    'invalid-image',
    /escape:1: layer 1 of 1: .*leads out of its root folder/,
  );
  const bomb = await push('bomb:1', { zeros: '\0'.repeat(4 << 20) });
  await refuses(store.ensure(from(bomb.ref)), 'too-large', /unpack to more than 1048576 bytes/);
  await using artifacts = await handmadeRegistry((asked, _request, response) => {
    const [, name = ''] = asked.split('/');
    const bodies: Record<string, object | string> = {
      text: 'not json',
      old: { schemaVersion: 1, name: 'x', tag: 'y', fsLayers: [] },
      chart: {
        schemaVersion: 2,
        mediaType: 'application/vnd.oci.image.manifest.v1+json',
        config: { mediaType: 'application/vnd.cncf.helm.config.v1+json', digest: sha256(''), size: 0 },
        layers: [],
      },
      huge: {
        schemaVersion: 2,
        mediaType: 'application/vnd.oci.image.manifest.v1+json',
        config: { mediaType: 'application/vnd.oci.image.config.v1+json', digest: sha256(''), size: 2 },
        layers: [{ mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: sha256('x'), size: 1e15 }],
      },
    };
    const body = bodies[name] ?? '';
    response.writeHead(200, { 'content-type': 'application/vnd.oci.image.manifest.v1+json' });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  });
  await refuses(store.ensure(from(`${artifacts.host}/app:text`)), 'invalid-image', /is not JSON/);
  await refuses(store.ensure(from(`${artifacts.host}/app:old`)), 'unsupported', /schema 1/);
  await refuses(
    store.ensure(from(`${artifacts.host}/app:chart`)),
    'unsupported',
    /an artifact of type .*helm/,
  );
  await refuses(
    store.ensure(from(`${artifacts.host}/app:huge`)),
    'too-large',
    /1000000000000000 bytes, at most/,
  );
  assert.deepEqual(
    (await readdir(store.images)).filter((name) => name.startsWith('sha256-')),
    [],
  );
  await assertTidy(store);
});
