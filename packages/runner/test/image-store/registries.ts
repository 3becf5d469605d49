/** Registries: platforms, credentials, failures. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { ImageError } from '../../src/image/image-store.ts';
import { assertTidy, refuses } from '../support/test-store.ts';
import { filesWith } from '@releap/testing/find-text';
import { sha256 } from '@releap/testing/oci';
import { REGISTRY_USER, handmadeRegistry, startRegistry } from '@releap/testing/registry';
import { scratch, registry, openStore, push, from } from '../support/image-store-world.ts';

test('the platform is chosen from an index, and its absence is reported', async () => {
  await using store = openStore();
  const amd = await push('multi-amd:1', { a: 'amd64' });
  const arm = await push('multi-arm:1', { a: 'arm64' }, { architecture: 'arm64' });
  await refuses(
    store.ensure(from(arm.ref)),
    'no-platform',
    /made for "linux\/arm64"; linux\/amd64 is what runs here/,
  );

  const manifests = new Map<string, Buffer>();
  for (const { layout, digest } of [amd, arm]) {
    manifests.set(digest, readFileSync(path.join(layout, 'blobs', 'sha256', digest.slice(7))));
  }
  const entry = (digest: string, architecture: string): object => ({
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    digest,
    size: manifests.get(digest)?.length ?? 0,
    platform: { os: 'linux', architecture },
  });
  const indexOf = (...entries: object[]): Buffer =>
    Buffer.from(
      JSON.stringify({
        schemaVersion: 2,
        mediaType: 'application/vnd.oci.image.index.v1+json',
        manifests: entries,
      }),
    );
  const both = indexOf(entry(arm.digest, 'arm64'), entry(amd.digest, 'amd64'));
  manifests
    .set('both', both)
    .set(sha256(both), both)
    .set('arm', indexOf(entry(arm.digest, 'arm64')));
  await using handmade = await handmadeRegistry((asked, _request, response) => {
    const [kind, name = ''] = asked.split('/');
    const data =
      kind === 'manifests'
        ? manifests.get(name)
        : [amd, arm]
            .map(({ layout }) => path.join(layout, 'blobs', 'sha256', name.slice(7)))
            .flatMap((file) => {
              try {
                return [readFileSync(file)];
              } catch {
                return [];
              }
            })[0];
    if (!data) {
      response.writeHead(404).end('{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}');
      return;
    }
    const type = (JSON.parse(kind === 'manifests' ? data.toString() : '{}') as { mediaType?: string })
      .mediaType;
    response
      .writeHead(200, { 'content-type': type ?? 'application/octet-stream', 'content-length': data.length })
      .end(data);
  });
  const image = await store.ensure(from(`${handmade.host}/app:both`));
  assert.equal(image.digest, amd.digest);
  // Pinned by the index's own digest it is known too, also to another process.
  await using later = openStore(path.dirname(store.images));
  const before = handmade.asked.length;
  assert.equal(
    (await later.ensure(from(`${handmade.host}/app:both`, { digest: sha256(both) }))).digest,
    amd.digest,
  );
  assert.equal(handmade.asked.length, before);
  await refuses(
    store.ensure(from(`${handmade.host}/app:arm`)),
    'no-platform',
    /no image for linux\/amd64; it has "linux\/arm64"/,
  );
  await refuses(store.ensure(from(`${handmade.host}/app:none`)), 'not-found', /has no image .*app:none/);
});

test('what a registry does not have, and a registry that does not respond, are reported', async () => {
  await using store = openStore();
  await refuses(
    store.ensure(from(`${registry.host}/nothing:1`)),
    'not-found',
    /registry localhost:\d+ has no image localhost:\d+\/nothing:1/,
  );
  await refuses(
    store.ensure(from('localhost:1/app')),
    'unreachable',
    /registry localhost:1 cannot be reached/,
  );
  await refuses(
    store.ensure(from('registry.invalid/app')),
    'unreachable',
    /registry registry.invalid cannot be reached/,
  );
  await refuses(store.ensure(from('Not A Reference')), 'bad-reference', /has the name/);
  await refuses(store.ensure(from('a', { digest: 'sha256:1' })), 'bad-reference', /is not an image digest/);
  await refuses(
    store.ensure({ type: 'builtin', name: 'nope' }),
    'not-found',
    /no built-in image "nope"; there are busybox, debian/,
  );
  await assertTidy(store);
});

test('a registry that never answers is given up on', async () => {
  await using store = openStore(undefined, { resolveMs: 500 });
  await using silent = await handmadeRegistry(() => undefined);
  await refuses(store.ensure(from(`${silent.host}/app`)), 'timeout', /did not answer within 0.5 s/);
  await assertTidy(store);
});

test('a registry with authentication gets the credential, and no other caller profits from it', async () => {
  const dir = path.join(scratch.path, 'private-registry');
  await mkdir(dir);
  const { username, password } = REGISTRY_USER;
  const credential = { username, password };
  await using guarded = await startRegistry(dir, true);
  const { ref, digest } = await push('secret:1', { a: 'a' }, {}, guarded);
  await using store = openStore();
  await refuses(store.ensure(from(ref)), 'unauthorized', /wants authentication for localhost:\d+\/secret:1/);
  await refuses(
    store.ensure(from(ref, { credential: { username: 'user', password: 'wrong' } })),
    'unauthorized',
    /does not accept the project's credential/,
  );
  const image = await store.ensure(from(ref, { credential }));
  assert.equal(image.digest, digest);
  await refuses(store.ensure(from(ref)), 'unauthorized', /wants authentication/);
  await refuses(
    store.ensure(from(`${guarded.host}/secret@${digest}`)),
    'unauthorized',
    /wants authentication/,
  );
  assert.deepEqual(await store.ensure(from(`${guarded.host}/secret@${digest}`, { credential })), image);
  await assertTidy(store);
});

test('a credential that control cannot send fails the pulls from the registry, and nothing else', async () => {
  await using store = openStore();
  const { ref, digest } = await push('locked:1', { a: 'locked' });
  const no_credential = 'its key is away';
  await refuses(store.ensure(from(ref, { no_credential })), 'unauthorized', /its key is away/);
  await store.ensure(from(ref));
  assert.equal((await store.ensure(from(ref, { digest, no_credential }))).digest, digest);
});

test('a password is in no file and in no reason, also when the registry says it back', async () => {
  const credential = { username: 'user', password: 'a "rare" pass/word' };
  const auth = Buffer.from(`${credential.username}:${credential.password}`).toString('base64');
  await using echo = await handmadeRegistry((_path, request, response) => {
    const said = `you sent ${request.headers.authorization} with ${credential.password}`;
    response.writeHead(400, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ errors: [{ code: 'DENIED', message: said }] }));
  });
  const cacheDir = path.join(scratch.path, 'echo-cache');
  await using store = openStore(cacheDir);
  const error: unknown = await store
    .ensure(from(`${echo.host}/app:1`, { credential }))
    .catch((e: unknown) => e);
  assert.ok(error instanceof ImageError);
  assert.match(error.message, /\*\*\*/);
  for (const secret of [credential.password, auth, JSON.stringify(credential.password).slice(1, -1)]) {
    assert.ok(!error.message.includes(secret), error.message);
    assert.deepEqual(filesWith(cacheDir, secret), []);
  }
});
