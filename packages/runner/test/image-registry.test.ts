/** Pulls from registries that authenticate and move their tags, and what images of them share. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { run, sha256 } from '@releap/testing/oci';
import { type HandmadeRegistry, handmadeRegistry } from '@releap/testing/registry';
import {
  blobsAsked,
  from,
  type Image,
  image,
  OCI_MANIFEST,
  openStore,
  PROJECT_A,
  PROJECT_B,
  serve,
} from './support/served-images.ts';
import { assertTidy, refuses } from './support/test-store.ts';

describe('references', () => {
  it('lead to no private address unless the operator allows it', async () => {
    await using registry = await handmadeRegistry(serve(await image({ a: 'a' })));
    await using strict = openStore({}, []);
    await refuses(
      strict.ensure(from(registry)),
      'private-address',
      /127\.0\.0\.1:\d+ is in a private or reserved/,
    );
    await refuses(
      strict.ensure({ type: 'registry', ref: registry.host.replace('127.0.0.1', 'localhost') + '/app' }),
      'private-address',
      /localhost, which is .*, is in a private/,
    );
    for (const host of ['169.254.169.254', '10.0.0.1:5000', '[::1]:5000', '192.168.0.1']) {
      await refuses(strict.ensure({ type: 'registry', ref: `${host}/app` }), 'private-address', /private/);
    }
    assert.deepEqual(registry.asked, []);
    await using allowed = openStore({}, ['loopback']);
    assert.ok((await allowed.ensure(from(registry))).sizeBytes > 0);
  });

  it('to an index of either kind get the image for this platform', async () => {
    await using store = openStore();
    for (const [index, entry] of [
      ['application/vnd.oci.image.index.v1+json', OCI_MANIFEST],
      [
        'application/vnd.docker.distribution.manifest.list.v2+json',
        'application/vnd.docker.distribution.manifest.v2+json',
      ],
    ] as const) {
      const wanted = await image({ a: `for ${index}` }, { compression: 'zstd' });
      if (entry !== OCI_MANIFEST) toDocker(wanted);
      const platform = (architecture: string): object => ({ os: 'linux', architecture });
      const raw = Buffer.from(
        JSON.stringify({
          schemaVersion: 2,
          mediaType: index,
          manifests: [
            { mediaType: entry, digest: sha256('arm'), size: 3, platform: platform('arm64') },
            {
              mediaType: entry,
              digest: wanted.manifest,
              size: wanted.blobs.get(wanted.manifest)?.length,
              platform: platform('amd64'),
            },
          ],
        }),
      );
      const list: Image = { manifest: sha256(raw), blobs: new Map([[sha256(raw), raw]]), layers: [] };
      await using registry = await handmadeRegistry(serve(list, wanted));
      const made = await store.ensure(from(registry));
      assert.equal(made.digest, wanted.manifest);
      assert.equal(run('unsquashfs', ['-cat', made.path, 'a']), `for ${index}`);
    }
  });

  it('with a tag that has moved get the new image once the old answer has expired', async () => {
    const [one, two] = [await image({ a: 'one' }), await image({ a: 'two' })];
    let current = one;
    await using registry = await handmadeRegistry((...all) => serve(current, one, two)(...all));
    await using store = openStore({ resolutionTtlMs: 0 });
    assert.equal((await store.ensure(from(registry))).digest, one.manifest);
    current = two;
    assert.equal((await store.ensure(from(registry))).digest, two.manifest);
    assert.equal((await store.ensure(from(registry, { digest: one.manifest }))).digest, one.manifest);
  });
});

/** The same image as Docker's tools would push it. */
function toDocker(of: Image): void {
  const text = String(of.blobs.get(of.manifest))
    .replaceAll(
      'application/vnd.oci.image.manifest.v1+json',
      'application/vnd.docker.distribution.manifest.v2+json',
    )
    .replaceAll('application/vnd.oci.image.config.v1+json', 'application/vnd.docker.container.image.v1+json')
    .replaceAll(
      'application/vnd.oci.image.layer.v1.tar+zstd',
      'application/vnd.docker.image.rootfs.diff.tar.zstd',
    );
  of.manifest = sha256(text);
  of.blobs.set(of.manifest, Buffer.from(text));
}

describe('a registry with a token server', () => {
  const credential = { username: 'user', password: 'secret' };
  const basic = `Basic ${Buffer.from('user:secret').toString('base64')}`;

  it('gets the credential at its token server alone, and the token at the registry', async () => {
    const served = await image({ a: 'a' });
    const seen: (string | undefined)[] = [];
    await using registry: HandmadeRegistry = await handmadeRegistry((asked, request, response) => {
      seen.push(request.headers.authorization);
      if (asked.startsWith('/token?')) {
        const { searchParams } = new URL(asked, 'http://x');
        assert.equal(searchParams.get('scope'), 'repository:app:pull');
        assert.equal(searchParams.get('service'), 'test');
        const isUser = request.headers.authorization === basic;
        return void response.writeHead(isUser ? 200 : 401).end(isUser ? '{"token":"t0ken"}' : '{}');
      }
      if (request.headers.authorization === 'Bearer t0ken') return serve(served)(asked, request, response);
      const realm = `http://${registry.host}/token`;
      response.writeHead(401, {
        'www-authenticate': `Bearer realm="${realm}",service="test",scope="repository:app:pull"`,
      });
      response.end('{}');
    });
    await using store = openStore();
    await refuses(store.ensure(from(registry)), 'unauthorized', /wants authentication/);
    await refuses(
      store.ensure(from(registry, { credential: { ...credential, password: 'wrong' } })),
      'unauthorized',
      /does not accept the project's credential/,
    );
    seen.length = 0;
    assert.equal((await store.ensure(from(registry, { credential }))).digest, served.manifest);
    assert.deepEqual(new Set(seen), new Set([undefined, basic, 'Bearer t0ken']));
  });

  it('cannot be at a private address', async () => {
    const served = await image({ a: 'a' });
    await using inside = await handmadeRegistry(
      (_asked, _request, response) => void response.end('{"token":"t"}'),
    );
    for (const realm of [
      `http://${inside.host}/token`,
      'https://169.254.169.254/token',
      'https://10.0.0.1/',
    ]) {
      await using registry = await handmadeRegistry((asked, request, response) => {
        if (request.headers.authorization !== undefined) return serve(served)(asked, request, response);
        response.writeHead(401, { 'www-authenticate': `Bearer realm="${realm}"` }).end();
      });
      await using store = openStore();
      await refuses(store.ensure(from(registry, { credential })), 'private-address', /private or reserved/);
      await assertTidy(store);
    }
    assert.deepEqual(inside.asked, []);
  });
});

describe('layers', () => {
  it('that another image brought are not fetched again', async () => {
    const base = Buffer.alloc(100_000, 'b');
    const [one, two] = [await image({ base, one: '1' }), await image({ base, two: '2' })];
    await using registry = await handmadeRegistry((asked, ...rest) =>
      serve(asked === 'manifests/2' ? two : one, one, two)(asked, ...rest),
    );
    await using store = openStore();
    await store.ensure(from(registry));
    registry.asked.length = 0;
    const made = await store.ensure({ type: 'registry', ref: `${registry.host}/app:2` });
    assert.equal(made.digest, two.manifest);
    assert.ok(!blobsAsked(registry).includes(two.layers[0] ?? ''));
    assert.ok(blobsAsked(registry).includes(two.layers[1] ?? ''));
    assert.equal(run('unsquashfs', ['-cat', made.path, 'base']), base.toString());
    assert.equal(run('unsquashfs', ['-cat', made.path, 'two']), '2');
  });

  it('of a project are not given to another one that names their digests', async () => {
    const secret = await image({ secret: 'of project a' });
    const [layer = ''] = secret.layers;
    const copy = retag(secret);
    await using guarded = await handmadeRegistry((asked, request, response) => {
      if (request.headers.authorization === undefined)
        response.writeHead(401, { 'www-authenticate': 'Basic realm="x"' }).end();
      else serve(asked === 'manifests/2' ? copy : secret, secret)(asked, request, response);
    });
    await using store = openStore();
    const credential = { username: 'a', password: 'a' };
    await store.ensure(from(guarded, { credential, project_id: PROJECT_A }));
    guarded.asked.length = 0;
    const again = `${guarded.host}/app:2`;
    await store.ensure({ type: 'registry', ref: again, credential, project_id: PROJECT_A });
    assert.ok(!blobsAsked(guarded).includes(layer));

    // Of the layer it knows the digest alone.
    const third = retag(copy);
    third.blobs.delete(layer);
    await using thief = await handmadeRegistry(serve(third));
    const wanted = from(thief, { project_id: PROJECT_B });
    await refuses(store.ensure(wanted), 'not-found', /has no image/);
    await refuses(store.ensure({ ...wanted, credential }), 'not-found', /has no image/);
    assert.ok(blobsAsked(thief).includes(layer));
  });

  it('that are interrupted are continued where they ended', async () => {
    const served = await image({ a: Buffer.alloc(300_000, 'x') }, { compression: 'none' });
    const [layer = ''] = served.layers;
    const ranges: (string | undefined)[] = [];
    await using registry = await handmadeRegistry((asked, request, response) => {
      if (!asked.endsWith(layer)) return serve(served)(asked, request, response);
      ranges.push(request.headers.range);
      if (ranges.length > 1) return serve(served)(asked, request, response);
      const data = served.blobs.get(layer) ?? Buffer.alloc(0);
      response.writeHead(200, { 'content-length': data.length });
      response.write(data.subarray(0, 150_000), () => setTimeout(() => response.destroy(), 50));
    });
    await using store = openStore();
    assert.equal((await store.ensure(from(registry))).digest, served.manifest);
    assert.equal(ranges[0], undefined);
    assert.match(ranges[1] ?? '', /^bytes=[1-9]\d*-$/);
  });
});

/** The same layers under another manifest. */
function retag(of: Image): Image {
  const manifest = JSON.parse(String(of.blobs.get(of.manifest))) as object;
  const raw = Buffer.from(JSON.stringify({ ...manifest, annotations: { copy: of.manifest } }));
  return { ...of, manifest: sha256(raw), blobs: new Map([...of.blobs, [sha256(raw), raw]]) };
}
