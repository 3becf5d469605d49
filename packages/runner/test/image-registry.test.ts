/** Pulls from registries that authenticate, redirect, move their tags, stall or attack, and who notices. */
import assert from 'node:assert/strict';
import { readFileSync, readlinkSync } from 'node:fs';
import { readdir, readFile, stat, utimes } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { RootSource } from '@releap/contract';
import { eventually, until } from '@releap/testing/eventually';
import { type OciOptions, run, sha256, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { childrenOf, processStatus } from '@releap/testing/processes';
import { type HandmadeRegistry, handmadeRegistry } from '@releap/testing/registry';
import type { ImageLimits } from '../src/image/image-limits.ts';
import { assertTidy, openTestStore, refuses, type TestStore } from './support/test-store.ts';
import { IMAGE_UID } from '../src/image/unprivileged.ts';

const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const PROJECT_A = '00000000-0000-4000-8000-00000000000a';
const PROJECT_B = '00000000-0000-4000-8000-00000000000b';

let scratch: Awaited<ReturnType<typeof temporaryFolder>>;
let serial = 0;
before(async () => {
  scratch = await temporaryFolder();
});
after(async () => {
  await scratch[Symbol.asyncDispose]();
});

function openStore(limits: Partial<ImageLimits> = {}, privateHosts?: readonly string[]): TestStore {
  return openTestStore(path.join(scratch.path, `cache-${(serial += 1)}`), limits, privateHosts);
}

interface Image {
  /** By digest, the manifest too. */
  blobs: Map<string, Buffer>;
  manifest: string;
  layers: string[];
}

/** An image with one layer for each file. */
async function image(files: Record<string, string | Buffer>, options: OciOptions = {}): Promise<Image> {
  const layout = path.join(scratch.path, `layout-${(serial += 1)}`);
  const tars = await Promise.all(
    Object.entries(files).map(async ([name, content]) => await tarOf([{ name, content }])),
  );
  const manifest = await writeOciLayout(layout, tars, options);
  const dir = path.join(layout, 'blobs', 'sha256');
  const blobs = new Map<string, Buffer>();
  for (const name of await readdir(dir)) blobs.set(`sha256:${name}`, await readFile(path.join(dir, name)));
  const { layers } = JSON.parse(String(blobs.get(manifest))) as { layers: { digest: string }[] };
  return { blobs, manifest, layers: layers.map(({ digest }) => digest) };
}

/** Answers like an honest registry with these images, whose first one has all tags. */
function serve(
  ...images: Image[]
): (asked: string, request: IncomingMessage, response: ServerResponse) => void {
  return (asked, request, response) => {
    const [kind, name = ''] = asked.split('/');
    const digest = name.startsWith('sha256:') ? name : (images[0]?.manifest ?? '');
    const data = images.map(({ blobs }) => blobs.get(digest)).find((found) => found !== undefined);
    if (data === undefined) {
      response.writeHead(404).end('{"errors":[{"code":"MANIFEST_UNKNOWN"}]}');
      return;
    }
    const type = kind === 'manifests' ? OCI_MANIFEST : 'application/octet-stream';
    const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0);
    const body = data.subarray(from);
    response.writeHead(from === 0 ? 200 : 206, { 'content-type': type, 'content-length': body.length });
    response.end(body);
  };
}

type Registry = Extract<RootSource, { type: 'registry' }>;
const from = ({ host }: HandmadeRegistry, more: Partial<Registry> = {}): Registry => ({
  type: 'registry',
  ref: `${host}/app:1`,
  ...more,
});

const blobsAsked = ({ asked }: HandmadeRegistry): string[] =>
  asked.filter((url) => url.includes('/blobs/')).map((url) => url.replace(/^.*\//, ''));

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

describe('a registry that redirects', () => {
  it('cannot lead to a private address', async () => {
    const served = await image({ a: 'a' });
    await using inside = await handmadeRegistry(serve(served));
    for (const [what, target] of [
      ['manifests', `http://${inside.host}`],
      ['blobs', `http://${inside.host}`],
      ['blobs', 'http://169.254.169.254'],
      ['manifests', 'http://[::ffff:10.0.0.1]'],
    ] as const) {
      await using registry = await handmadeRegistry((asked, request, response) => {
        if (!asked.startsWith(what)) return serve(served)(asked, request, response);
        response.writeHead(307, { location: `${target}/v2/app/${asked}` }).end();
      });
      await using store = openStore();
      await refuses(store.ensure(from(registry)), 'private-address', /private or reserved/);
      await assertTidy(store);
    }
    assert.deepEqual(inside.asked, []);
  });

  it('is followed to where the operator allows it, without the credential', async () => {
    const served = await image({ a: 'a' });
    const seen: (string | undefined)[] = [];
    await using storage = await handmadeRegistry((asked, request, response) => {
      seen.push(request.headers.authorization);
      serve(served)(asked, request, response);
    });
    await using registry = await handmadeRegistry((asked, request, response) => {
      if (request.headers.authorization === undefined)
        return void response.writeHead(401, { 'www-authenticate': 'Basic realm="x"' }).end();
      if (asked.startsWith('manifests')) return serve(served)(asked, request, response);
      response.writeHead(302, { location: `http://${storage.host}/v2/app/${asked}` }).end();
    });
    await using store = openStore({}, ['loopback', storage.host]);
    const credential = { username: 'user', password: 'secret' };
    assert.equal((await store.ensure(from(registry, { credential }))).digest, served.manifest);
    assert.ok(seen.length > 0);
    assert.deepEqual(new Set(seen), new Set([undefined]));
  });

  it('is not followed for ever', async () => {
    await using registry: HandmadeRegistry = await handmadeRegistry((_asked, _request, response) => {
      response.writeHead(307, { location: `http://${registry.host}/v2/app/again` }).end();
    });
    await using store = openStore();
    await refuses(store.ensure(from(registry)), 'failed', /redirects more than 5 times/);
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

describe('a registry that attacks', () => {
  it('with a layer without end is stopped one byte after its size', async () => {
    const served = await image({ a: Buffer.alloc(10_000, 'a') });
    const [layer = ''] = served.layers;
    await using registry = await handmadeRegistry((asked, request, response) => {
      if (!asked.endsWith(layer)) return serve(served)(asked, request, response);
      response.writeHead(200);
      response.write(served.blobs.get(layer));
      const more = Buffer.alloc(64 * 1024);
      const timer = setInterval(() => response.write(more), 5);
      response.once('close', () => clearInterval(timer));
    });
    await using store = openStore();
    await refuses(store.ensure(from(registry)), 'lying-registry', /does not match its digest/);
    await assertTidy(store);
  });

  it('with a manifest without end is stopped at the limit', async () => {
    await using registry = await handmadeRegistry((_asked, _request, response) => {
      response.writeHead(200, { 'content-type': OCI_MANIFEST });
      const more = Buffer.alloc(64 * 1024, ' ');
      const timer = setInterval(() => response.write(more), 1);
      response.once('close', () => clearInterval(timer));
    });
    await using store = openStore({ manifestBytes: 256 * 1024 });
    await refuses(store.ensure(from(registry)), 'too-large', /of more than 262144 bytes/);
  });

  it('by sending nothing, or next to nothing, is given up on', async () => {
    const served = await image({ a: Buffer.alloc(200_000, 'a') }, { compression: 'none' });
    const [layer = ''] = served.layers;
    let drips = false;
    await using registry = await handmadeRegistry((asked, request, response) => {
      if (!asked.endsWith(layer)) return serve(served)(asked, request, response);
      response.writeHead(200, { 'content-length': 200_000 });
      response.write('x');
      if (!drips) return;
      const timer = setInterval(() => response.write('x'), 20);
      response.once('close', () => clearInterval(timer));
    });
    await using store = openStore({ stallMs: 400 });
    await refuses(
      store.ensure(from(registry)),
      'timeout',
      /sent (nothing for 0.4 s|\d+ bytes in \d+ s) while/,
    );
    drips = true;
    await refuses(store.ensure(from(registry)), 'timeout', /sent \d+ bytes in \d+ s .*; at least 524288/);
    await assertTidy(store);
  });

  it('on one project does not hold up another', async () => {
    const slow = await Promise.all(['1', '2', '3', '4'].map((name) => image({ name })));
    await using stalling = await handmadeRegistry((asked, request, response) => {
      const [kind, name = ''] = asked.split('/');
      const index = Number(name) - 1;
      if (kind === 'manifests' && index >= 0) return serve(...slow.slice(index))(asked, request, response);
      if (slow.some(({ layers }) => layers.includes(name))) return;
      serve(...slow)(asked, request, response);
    });
    const quick = await image({ a: 'quick' });
    await using honest = await handmadeRegistry(serve(quick));
    await using store = openStore();
    const stop = new AbortController();
    const stalled = slow.map((_, index) =>
      store
        .ensure(
          { type: 'registry', ref: `${stalling.host}/app:${index + 1}`, project_id: PROJECT_A },
          { signal: stop.signal },
        )
        .catch((error: unknown) => error),
    );
    const layers = slow.flatMap((one) => one.layers);
    await until(() => layers.filter((layer) => blobsAsked(stalling).includes(layer)).length === 2);
    await until(async () => (await store.stats()).pulls.waiting === 2);
    assert.equal((await store.stats()).pulls.running, 2);
    assert.equal((await store.ensure(from(honest, { project_id: PROJECT_B }))).digest, quick.manifest);
    stop.abort();
    await Promise.all(stalled);
  });

  it('on an image does not hold up the same image from another repository', async () => {
    const served = await image({ a: 'the same everywhere' });
    const [layer = ''] = served.layers;
    await using stalling = await handmadeRegistry((asked, request, response) => {
      if (!asked.endsWith(layer)) serve(served)(asked, request, response);
    });
    await using honest = await handmadeRegistry(serve(served));
    await using store = openStore();
    const stop = new AbortController();
    const stalled = store
      .ensure(from(stalling, { project_id: PROJECT_A }), { signal: stop.signal })
      .catch((error: unknown) => error);
    await until(() => blobsAsked(stalling).includes(layer));
    assert.equal((await store.ensure(from(honest, { project_id: PROJECT_B }))).digest, served.manifest);
    stop.abort();
    await stalled;
  });
});

it('the processes that fetch and unpack have no privileges, and the latter no network', async () => {
  const served = await image({ a: 'a' });
  const [layer = ''] = served.layers;
  await using registry = await handmadeRegistry((asked, request, response) => {
    if (!asked.endsWith(layer)) serve(served)(asked, request, response);
  });
  await using store = openStore();
  const stop = new AbortController();
  const stalled = store.ensure(from(registry), { signal: stop.signal }).catch((error: unknown) => error);
  await until(() => blobsAsked(registry).includes(layer));
  const found = await eventually('two processes without privileges', async () => {
    const named = new Map<string, number>();
    for (const pid of await childrenOf(process.pid)) {
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
      const module = command.find((word) => /(fetch|make)-process\.m?[jt]s$/.test(word));
      const status = await processStatus(pid);
      if (
        module !== undefined &&
        status
          ?.get('Uid')
          ?.split(/\s+/)
          .every((id) => Number(id) === IMAGE_UID)
      )
        named.set(path.parse(module).name, pid);
    }
    return named.size === 2 ? named : undefined;
  });
  const own = readlinkSync('/proc/self/ns/net');
  for (const [module, pid] of found) {
    const status = await processStatus(pid);
    for (const set of ['CapEff', 'CapPrm', 'CapInh', 'CapAmb'])
      assert.equal(Number.parseInt(status?.get(set) ?? '1', 16), 0, `${module} ${set}`);
    assert.equal(status?.get('NoNewPrivs'), '1', module);
    assert.equal(readlinkSync(`/proc/${pid}/ns/net`) === own, module === 'fetch-process', module);
    assert.notEqual(readlinkSync(`/proc/${pid}/ns/mnt`), readlinkSync('/proc/self/ns/mnt'), module);
  }
  stop.abort();
  await stalled;
});

it('a pinned image stays when the cache is too large, until it is unpinned', async () => {
  const served = await image({ a: 'kept' });
  await using registry = await handmadeRegistry(serve(served));
  await using store = openStore({ cacheBytes: 1, layerBytes: 0 });
  const made = await store.ensure(from(registry));
  assert.equal(await store.pin(made.digest), true);
  assert.equal(await store.pin(sha256('another')), false);
  const age = async (): Promise<void> => await utimes(path.join(path.dirname(made.path), 'used'), 0, 0);
  await age();
  await store.gc();
  assert.ok((await stat(made.path)).size > 0);
  await store.unpin(made.digest);
  await age();
  await store.gc();
  assert.equal(await store.find(made.digest), undefined);
});
