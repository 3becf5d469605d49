/** Pulls from registries that redirect, stall or attack, and who notices. */
import assert from 'node:assert/strict';
import { readFileSync, readlinkSync } from 'node:fs';
import { stat, utimes } from 'node:fs/promises';
import path from 'node:path';
import { describe, it } from 'node:test';
import { eventually, until } from '@releap/testing/eventually';
import { sha256 } from '@releap/testing/oci';
import { childrenOf, processStatus } from '@releap/testing/processes';
import { type HandmadeRegistry, handmadeRegistry } from '@releap/testing/registry';
import { IMAGE_UIDS } from '../src/image/unprivileged.ts';
import {
  blobsAsked,
  from,
  image,
  OCI_MANIFEST,
  openStore,
  PROJECT_A,
  PROJECT_B,
  serve,
} from './support/served-images.ts';
import { assertTidy, openTestStore, refuses } from './support/test-store.ts';

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
    await using store = openStore({ stallMs: 1_500 });
    await refuses(
      store.ensure(from(registry)),
      'timeout',
      /sent (nothing for 1.5 s|\d+ bytes in \d+ s) while/,
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
      const uids = status?.get('Uid')?.split(/\s+/).map(Number);
      if (module !== undefined && uids?.every((id) => id >= IMAGE_UIDS.first && id <= IMAGE_UIDS.last))
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
  await using first = openStore();
  const made = await first.ensure(from(registry));
  // Another one: the collection that follows an image in the background may see the image before it is pinned.
  await using store = openTestStore(path.dirname(first.images), { cacheBytes: 1, layerBytes: 0 });
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
