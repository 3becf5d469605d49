import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { link, mkdir, readFile, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { RootSource } from '@releap/contract';
import { ImageError } from '../src/image/image-store.ts';
import type { ImageProgress } from '../src/image/image-store.ts';
import type { ImageLimits } from '../src/image/image-limits.ts';
import { assertTidy, openTestStore, refuses, type TestStore } from './support/test-store.ts';
import { filesWith } from '@releap/testing/find-text';
import { run, sha256, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import type { OciOptions } from '@releap/testing/oci';
import { programOf } from '@releap/testing/program';
import { REGISTRY_USER, handmadeRegistry, startRegistry } from '@releap/testing/registry';
import type { TestRegistry } from '@releap/testing/registry';

let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
let registry: TestRegistry;
let serial = 0;

before(async () => {
  scratch = await temporaryFolder();
  const dir = path.join(scratch.path, 'registry');
  await mkdir(dir);
  registry = await startRegistry(dir);
});
after(async () => {
  await registry[Symbol.asyncDispose]();
  await scratch[Symbol.asyncDispose]();
});

function openStore(
  cacheDir = path.join(scratch.path, `cache-${(serial += 1)}`),
  limits: Partial<ImageLimits> = {},
): TestStore {
  return openTestStore(cacheDir, limits);
}

/** Pushes a small image and returns its reference and digest. */
async function push(
  name: string,
  files: Record<string, string>,
  options: OciOptions = {},
  to: TestRegistry = registry,
): Promise<{ ref: string; digest: string; layout: string }> {
  const layout = path.join(scratch.path, `layout-${(serial += 1)}`);
  const tars = await Promise.all(
    Object.entries(files).map(async ([file, content]) => await tarOf([{ name: file, content }])),
  );
  const digest = await writeOciLayout(layout, tars, options);
  to.push(layout, name);
  return { ref: `${to.host}/${name}`, digest, layout };
}

const from = (ref: string, more: Partial<Extract<RootSource, { type: 'registry' }>> = {}): RootSource => ({
  type: 'registry',
  ref,
  ...more,
});

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

/** The unpacked layers that are kept. */
async function archives(store: TestStore): Promise<string[]> {
  return (await readdir(path.join(store.images, 'layers'))).filter((name) => name.endsWith('.tar'));
}

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

test('a process killed in the middle leaves nothing visible, and the next one starts afresh', async () => {
  const layout = path.join(scratch.path, 'big-layout');
  const tars = [];
  for (let i = 0; i < 4; i += 1) {
    tars.push(await tarOf([{ name: `file-${i}`, content: Buffer.alloc(8 << 20, String(i)) }]));
  }
  await writeOciLayout(layout, tars);
  registry.push(layout, 'big:1');
  const cacheDir = path.join(scratch.path, `cache-${(serial += 1)}`);
  const script = programOf(fileURLToPath(new URL('support/image-ensure.ts', import.meta.url)));
  for (const phase of ['pull', 'unpack', 'write', 'publish']) {
    const child = spawn(process.execPath, [script, cacheDir, `${registry.host}/big:1`], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const killed = new Promise<void>((resolve) => child.once('close', () => resolve()));
    for await (const chunk of child.stdout) {
      if (String(chunk).includes(phase)) child.kill('SIGKILL');
    }
    await killed;
    await using store = openStore(cacheDir);
    // Child processes of the dead one end by themselves before its work is removed.
    for (let left = 600; left > 0; left -= 1) {
      await store.start();
      if ((await readdir(path.join(store.images, 'staging'))).length === 0) break;
      await sleep(100);
      await using again = openStore(cacheDir);
      await again.start();
    }
    await assertTidy(store);
    for (const name of (await readdir(store.images)).filter((entry) => entry.startsWith('sha256-'))) {
      const digest = name.replace('-', ':');
      assert.ok(await store.find(digest), `${phase}: a visible image is whole`);
      await store.remove(digest);
    }
    assert.deepEqual(await descendantsUsing(cacheDir), []);
  }
  await using store = openStore(cacheDir);
  assert.equal((await store.ensure(from(`${registry.host}/big:1`))).layerCount, 4);
});

/** Processes other than this one that name the folder in their arguments, or have a part of it in their root. */
async function descendantsUsing(dir: string): Promise<string[]> {
  // A mount names its source by the path in its file system.
  const source = dir.split('/').slice(-2).join('/');
  for (let left = 600; ; left -= 1) {
    const found = readdirSync('/proc')
      .filter((pid) => /^[0-9]+$/.test(pid) && Number(pid) !== process.pid)
      .flatMap((pid) => {
        try {
          const text = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
          const mounts = readFileSync(`/proc/${pid}/mountinfo`, 'utf8');
          return text.includes(dir) || mounts.includes(source) ? [text.replaceAll('\0', ' ')] : [];
        } catch {
          return [];
        }
      });
    if (found.length === 0 || left === 0) return found;
    await sleep(100);
  }
}

test('garbage collection removes the least recently used images and none that is in use', async () => {
  await using store = openStore(undefined, { cacheBytes: 1, layerBytes: 1 });
  const images = [];
  for (const name of ['leased', 'recent', 'linked', 'old']) {
    images.push(await store.ensure(from((await push(`gc-${name}:1`, { name })).ref)));
  }
  const [leased, recent, linked, old] = images;
  assert.ok(leased && recent && linked && old);
  const longAgo = new Date(Date.now() - 24 * 3600_000);
  for (const image of [leased, linked, old]) {
    await utimes(path.join(path.dirname(image.path), 'used'), longAgo, longAgo);
  }
  await link(linked.path, path.join(scratch.path, 'jail-link'));
  const lease = store.lease(leased.digest);
  assert.ok((await store.gc()) > 0);
  assert.deepEqual(
    (await readdir(store.images)).filter((name) => name.startsWith('sha256-')).sort(),
    [leased, recent, linked].map(({ digest }) => digest.replace(':', '-')).sort(),
  );
  assert.deepEqual(await archives(store), []);
  assert.equal(await store.remove(leased.digest), false);
  lease.release();
  lease.release();
  assert.equal(await store.remove(leased.digest), true);
  assert.equal(await store.find(leased.digest), undefined);
  assert.equal(await store.find(old.digest), undefined);
});

test('an image whose files were damaged on disk is made again', async () => {
  await using store = openStore();
  const { ref, digest } = await push('damaged:1', { a: 'a' });
  const image = await store.ensure(from(ref));
  await rm(image.path);
  await writeFile(image.path, 'short');
  await using later = openStore(path.dirname(store.images));
  assert.equal((await later.ensure(from(ref))).digest, digest);
  assert.equal((await stat(image.path)).size, image.sizeBytes);
});
