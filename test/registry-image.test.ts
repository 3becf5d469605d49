import assert from 'node:assert/strict';
import { createCipheriv, createHash } from 'node:crypto';
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { run, tarOf, temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { handmadeRegistry, startRegistry, type TestRegistry } from '@releap/testing/registry';
import { appImage } from './support/app-image.ts';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { freePort } from '@releap/testing/ports';
import { makeImagelessCache, Service } from '@releap/testing/service';

const SMALL = { cpu: 1, mem_mib: 256, scratch_mib: 64 };
/** More than an image that is made as one file has. */
const LARGE_BYTES = 33 * 2 ** 20;

/** Bytes of which no two blocks are equal. */
function pseudoRandom(bytes: number): Buffer {
  return createCipheriv('aes-128-ctr', Buffer.alloc(16), Buffer.alloc(16)).update(Buffer.alloc(bytes));
}

describe('an image from a real registry', () => {
  let service: Service;
  let registry: TestRegistry;
  let folder: Awaited<ReturnType<typeof temporaryFolder>>;
  let digest: string;
  let id: string;

  before(async () => {
    folder = await temporaryFolder();
    const store = join(folder.path, 'registry');
    await mkdir(store);
    registry = await startRegistry(store);
    const layout = join(folder.path, 'app');
    digest = await writeOciLayout(layout, await appImage(), {
      config: {
        Entrypoint: ['/bin/sh', '/app/start.sh'],
        Cmd: ['first argument', 'second'],
        Env: ['PATH=/bin:/usr/bin:/app', 'COLOUR=blue', 'SHADE=from the image'],
        User: 'worker',
        WorkingDir: '/app/data',
        StopSignal: 'SIGTERM',
      },
    });
    registry.push(layout, 'app:1');
    // Its own cache: everything here is pulled, not found.
    service = await Service.start({ RELEAP_CACHE: await makeImagelessCache(join(folder.path, 'cache')) });
  });

  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await registry?.[Symbol.asyncDispose]();
    await folder?.[Symbol.asyncDispose]();
  });

  async function log(kind: 'logs' | 'entrypoint-logs', of = id): Promise<string> {
    const { status, body } = await service.call<string>('GET', `/vms/${of}/${kind}`);
    assert.equal(status, 200, JSON.stringify(body));
    return body;
  }

  /** Creates a sandbox that cannot start, and returns the reason. */
  async function failure(image: unknown): Promise<string> {
    const { status, body } = await service.call<{ vm_id: string; job_id: string }>('POST', '/vms', {
      ...SMALL,
      image,
    });
    assert.equal(status, 200, JSON.stringify(body));
    const vm = await service.waitFor(body.vm_id, 'failed');
    assert.equal(vm['status'], 'failed', JSON.stringify(vm));
    const job = await service.call('GET', `/jobs/${body.job_id}`);
    assert.equal(job.body['status'], 'failed');
    await service.untilNoTraceOf(body.vm_id);
    return String(vm['error']);
  }

  async function build(name: string, source: unknown): Promise<{ job: unknown; image: unknown }> {
    const made = await service.call<{ job_id: string; status: string }>('POST', '/images', { name, source });
    assert.equal(made.status, 200, JSON.stringify(made.body));
    assert.equal(made.body.status, 'pending');
    const job = await eventually(`the build of ${name}`, async () => {
      const { body } = await service.call('GET', `/jobs/${made.body.job_id}`);
      return body['status'] === 'done' || body['status'] === 'failed' ? body : undefined;
    });
    const { body } = await service.call<{ images: { name: string }[] }>('GET', '/images');
    return { job, image: body.images.find((image) => image.name === name) };
  }

  test('runs by its reference', async () => {
    ({ id } = await service.create({
      ...SMALL,
      image: `${registry.host}/app:1`,
      env: { SHADE: 'from the request' },
    }));
    const { body } = await service.call('GET', `/vms/${id}`);
    assert.equal(body['image_ref'], `${registry.host}/app:1`);
    assert.equal(body['manifest_name'], digest);
  });

  test('its entrypoint runs as configured: arguments, user, working folder, environment', async () => {
    const said = await eventually('its last lines', async () => {
      const text = await log('entrypoint-logs');
      // Two pipes: what came through one is in order, what came through both is not.
      return text.includes('ready\n') && /^error stream$/m.test(text) ? text : undefined;
    });
    assert.equal(
      said.replace('error stream\n', ''),
      [
        'arguments: [first argument] [second]',
        'user: uid=4711(worker) gid=4712(crew)',
        'folder: /app/data',
        'colour: blue, shade: from the request, path: /bin:/usr/bin:/app',
        'home: /home/worker',
        'ready',
        '',
      ].join('\n'),
    );
  });

  test('commands in it have the same user, folder and environment', async () => {
    const { result } = await service.exec(
      id,
      'id -un; pwd; echo "$COLOUR, $SHADE"; touch mine && stat -c %U mine',
    );
    assert.equal(result, 'worker\n/app/data\nblue, from the request\nworker\n');
  });

  test('entrypoint-logs can be followed until the sandbox ends', async () => {
    const answer = await fetch(`${service.bootstrap.base_url}/vms/${id}/entrypoint-logs?follow=true`, {
      headers: { authorization: `Bearer ${service.bootstrap.api_key}` },
      signal: AbortSignal.timeout(300_000),
    });
    const whole = answer.text();
    await service.exec(id, 'echo hello > /app/data/inbox');
    await eventually('the answer', async () =>
      (await log('entrypoint-logs')).includes('got hello') ? true : undefined,
    );
    await service.remove(id);
    const followed = await whole;
    assert.match(followed, /^ready\n/m);
    assert.match(followed, /^got hello\n/m);
    assert.match(await log('entrypoint-logs'), /got hello\n/);
  });

  test('with a large layer boots from its layers as they lie, and from one file where it must be durable', async () => {
    const large = pseudoRandom(LARGE_BYTES);
    const layout = join(folder.path, 'large');
    const layers = [...(await appImage()), await tarOf([{ name: 'large', content: large, mode: 0o644 }])];
    await writeOciLayout(layout, layers, { compression: 'none' });
    registry.push(layout, 'large:1');
    const image = `${registry.host}/large:1`;
    const sum = `${createHash('sha256').update(large).digest('hex')}\n`;
    const sumInGuest =
      "busybox sha256sum /large | busybox cut -d ' ' -f 1; cat /app/start.sh | busybox grep -c ready";

    const ephemeral = await service.create({ ...SMALL, image });
    const { body: record } = await service.call<{ manifest_name: string }>('GET', `/vms/${ephemeral.id}`);
    const files = (): Promise<string[]> =>
      readdir(join(folder.path, 'cache/images', record.manifest_name.replace(':', '-')));
    assert.deepEqual(
      (await files()).filter((name) => name.startsWith('root') || name.startsWith('layer')).sort(),
      ['layer-0.tar', 'root.head', 'root.vmdk'],
    );
    assert.equal((await service.exec(ephemeral.id, sumInGuest)).result, `${sum}1\n`);
    // A snapshot outlives the cache.
    const taken = await service.call<{ id: string }>('POST', `/vms/${ephemeral.id}/snapshots`, {
      name: 'of-large',
    });
    await eventually('the snapshot', async () => {
      const { body } = await service.call('GET', `/snapshots/${taken.body.id}?wait=ready&timeout_ms=60000`);
      return body['status'] === 'ready';
    });
    assert.ok((await files()).includes('root.squashfs'));
    await service.remove(ephemeral.id);
    assert.equal((await service.call('DELETE', `/snapshots/${taken.body.id}`)).status, 200);

    const persistent = await service.create({ ...SMALL, image, persistent: true });
    assert.ok(!(await files()).includes('unsynced'));
    assert.equal((await service.exec(persistent.id, sumInGuest)).result, `${sum}1\n`);
    await service.call('POST', `/vms/${persistent.id}/pause`);
    assert.equal((await service.waitFor(persistent.id, 'paused'))['status'], 'paused');
    await service.call('POST', `/vms/${persistent.id}/resume`);
    assert.equal((await service.waitFor(persistent.id, 'running'))['status'], 'running');
    await service.exec(persistent.id, 'echo 3 > /proc/sys/vm/drop_caches', { user: 'root' });
    assert.equal((await service.exec(persistent.id, sumInGuest)).result, `${sum}1\n`);
    await service.remove(persistent.id);
  });

  test('becomes a named image that is ready, and boots the built image also when the tag has moved', async () => {
    const { job, image } = await build('my-app', `${registry.host}/app:1`);
    assert.equal((job as { status: string }).status, 'done');
    const { id: _id, created_at, updated_at, built_at, bytes, ...record } = image as Record<string, unknown>;
    assert.ok(Date.parse(String(created_at)) <= Date.parse(String(built_at)));
    assert.ok(Date.parse(String(created_at)) <= Date.parse(String(updated_at)));
    assert.ok(Number(bytes) > 0);
    assert.deepEqual(record, {
      name: 'my-app',
      source: { type: 'registry', ref: `${registry.host}/app:1` },
      status: 'ready',
      manifest_name: digest,
      layer_count: 2,
      docker: false,
      error: null,
      job_id: (job as { id: string }).id,
      region: 'local',
    });
    const other = join(folder.path, 'other');
    await writeOciLayout(other, await appImage(), { config: { Entrypoint: ['/bin/false'] } });
    registry.push(other, 'app:1');
    const vm = await service.create({ ...SMALL, image: 'my-app' });
    assert.equal((await service.exec(vm.id, 'echo $COLOUR')).result, 'blue\n');
    await service.remove(vm.id);
  });

  test('an entrypoint that ends does not end its sandbox, and says so in the log', async () => {
    const layout = join(folder.path, 'short');
    await writeOciLayout(layout, await appImage(), {
      config: { Entrypoint: ['/bin/sh', '-c', 'echo done with it; exit 3'] },
    });
    registry.push(layout, 'short:1');
    const vm = await service.create({ ...SMALL, image: `${registry.host}/short:1` });
    await eventually('its output', async () =>
      (await log('entrypoint-logs', vm.id)).includes('done with it') ? true : undefined,
    );
    assert.equal((await service.exec(vm.id, 'echo still here')).result, 'still here\n');
    await service.remove(vm.id);
  });

  test('an unknown tag and an unknown repository fail by name', async () => {
    assert.match(await failure(`${registry.host}/app:no-such-tag`), /app:no-such-tag.*(not|unknown)/i);
    assert.match(await failure(`${registry.host}/nobody:1`), /nobody:1/);
    const { job, image } = await build('broken', `${registry.host}/app:no-such-tag`);
    assert.match((job as { error: string }).error, /no-such-tag/);
    assert.equal((image as { status: string }).status, 'failed');
    assert.match((image as { error: string }).error, /no-such-tag/);
    const refused = await service.call<{ error: string }>('POST', '/vms', { ...SMALL, image: 'broken' });
    assert.equal(refused.status, 409);
    assert.match(refused.body.error, /broken.*no-such-tag/);
  });

  test('a registry that does not listen, or does not respond, fails by its address', async () => {
    const port = await freePort();
    assert.match(await failure(`localhost:${port}/app:1`), new RegExp(`localhost:${port}.*ECONNREFUSED`));
  });

  test('something that is no registry fails by its address', async () => {
    const server = createServer((socket) => socket.on('error', () => undefined).end('220 mail ready\r\n'));
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    const { port } = server.address() as { port: number };
    try {
      assert.match(await failure(`localhost:${port}/app:1`), new RegExp(`localhost:${port}`));
    } finally {
      server.close();
    }
  });

  test('a registry whose bytes are not what their digest says fails, and nothing of them is kept', async () => {
    const layout = join(folder.path, 'lie');
    const name = await writeOciLayout(
      layout,
      await appImage([{ name: 'app/lie', content: 'a layer of its own' }]),
    );
    const blob = (of: string): Promise<Buffer> => readFile(join(layout, 'blobs/sha256', of.slice(7)));
    const manifest = await blob(name);
    const { layers } = JSON.parse(manifest.toString()) as { layers: { digest: string }[] };
    const last = layers.at(-1)?.digest;
    assert.ok(last !== undefined);
    await using liar = await handmadeRegistry((path, _request, response) => {
      void (async () => {
        if (path.startsWith('manifests/')) {
          response.setHeader('content-type', 'application/vnd.oci.image.manifest.v1+json');
          response.setHeader('docker-content-digest', name);
          return response.end(manifest);
        }
        const asked = path.replace('blobs/', '');
        const content = await blob(asked);
        // One bit of the last layer is another.
        if (asked === last) content[content.length - 1] = (content.at(-1) ?? 0) ^ 1;
        return response.end(content);
      })();
    });
    const error = await failure(`${liar.host}/app:1`);
    assert.match(error, /digest/);
    assert.match(error, new RegExp(last.slice(7, 19)));
  });

  test('a reference with a digest that the registry does not have fails by it', async () => {
    const wrong = `sha256:${'0'.repeat(64)}`;
    assert.match(await failure(`${registry.host}/app@${wrong}`), /0000000/);
  });

  test('an image for another processor fails by it', async () => {
    const layout = join(folder.path, 'arm');
    await writeOciLayout(layout, await appImage(), { architecture: 'arm64' });
    registry.push(layout, 'arm:1');
    assert.match(await failure(`${registry.host}/arm:1`), /amd64|arm64/);
  });

  test('an image that cannot be run fails with what is missing', async () => {
    const layout = join(folder.path, 'no-such-program');
    await writeOciLayout(layout, await appImage(), {
      config: { User: 'nobody-knows', Entrypoint: ['/bin/true'] },
    });
    registry.push(layout, 'user:1');
    const { body } = await service.call<{ vm_id: string }>('POST', '/vms', {
      ...SMALL,
      image: `${registry.host}/user:1`,
    });
    const vm = await service.waitFor(body.vm_id, 'running');
    // What its entrypoint says comes after the status.
    await eventually('the reason', async () => {
      const reason = `${String(vm['error'])}\n${await log('logs', body.vm_id)}\n${await log('entrypoint-logs', body.vm_id)}`;
      assert.match(reason, /nobody-knows/);
      return true;
    });
    await service.remove(body.vm_id);
  });

  test('a layer that climbs out of its root writes nothing on the host', async () => {
    const layout = join(folder.path, 'climber');
    const outside = join(folder.path, 'escaped');
    await writeOciLayout(
      layout,
      await appImage([{ name: `../../../../../../..${outside}`, content: 'out' }]),
    );
    registry.push(layout, 'climber:1');
    assert.match(await failure(`${registry.host}/climber:1`), /\.\./);
    assert.throws(() => run('cat', [outside]));
  });

  test('the service stops and leaves nothing', async () => {
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
