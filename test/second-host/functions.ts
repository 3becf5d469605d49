/** Instances of functions on both hosts. */
import assert from 'node:assert/strict';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '@releap/testing/eventually';
import {
  PATIENCE_MS,
  service,
  first,
  operator,
  bothReady,
  storeMetric,
  second,
} from '../support/second-host.ts';

/** Parts that only a full snapshot has: memory, state of the devices, their description. */
const MEMORY_PARTS = 3;

test('instances of a function are restored on a host that has not captured them', async (t) => {
  const folders = new Map([
    [first.id, join(service.home, 'runner/snapshots')],
    [await bothReady(), join(second.home, 'runner/snapshots')],
  ]);
  const memMib = 1024;
  const store = join(service.home, 'store');
  /** Of all blobs in the store. */
  const sizes = async (): Promise<number[]> => {
    const blobs = await readdir(store, { recursive: true, withFileTypes: true });
    const files = blobs.filter((one) => one.isFile());
    return Promise.all(files.map(async ({ parentPath, name }) => (await stat(join(parentPath, name))).size));
  };
  const before = (await sizes()).length;
  const deployed = await service.call('POST', '/fns', {
    name: 'restored',
    image: { type: 'named', name: 'busybox' },
    // The answer is what the handler has drawn when it started.
    handler: [
      '/bin/sh',
      '-c',
      `mkdir -p /www/cgi-bin && printf '#!/bin/sh\nprintf "content-type: text/plain\\r\\n\\r\\n%s"' $(cat /proc/sys/kernel/random/uuid) > /www/cgi-bin/index.cgi
chmod +x /www/cgi-bin/index.cgi && exec httpd -f -p $RLP_FN_PORT -h /www`,
    ],
    snapshot_kind: 'fn_ready',
    mem_mib: memMib,
    scratch_mib: 64,
    scaledown_window_s: 2,
  });
  assert.equal(deployed.status, 200, JSON.stringify(deployed.body));
  interface Versions {
    versions: { template_state: string; template_error: string | null }[];
  }
  await eventually(
    'the version is published, and its memory in the store',
    async () => {
      const [version] = (await service.call<Versions>('GET', '/fns/restored/versions')).body.versions;
      assert.equal(version?.template_error, null);
      return version.template_state === 'published' && (await sizes()).length >= before + MEMORY_PARTS;
    },
    PATIENCE_MS,
  );
  await eventually('nothing is uploaded', async () => (await storeMetric('uploads')) === 0, PATIENCE_MS);
  const { base_url: url, api_key: key } = service.bootstrap;
  const call = async (): Promise<{ text: string; cold: boolean }> => {
    const answer = await fetch(`${url}/fns/restored/invoke`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}` },
      body: '{}',
    });
    const text = await answer.text();
    assert.equal(answer.status, 200, text);
    return { text, cold: answer.headers.get('x-rlp-cold') === '1' };
  };
  // A busy machine may take longer to start an instance than a call waits.
  const had = await eventually('a call that is answered', call, PATIENCE_MS);
  assert.match(had.text, /^[0-9a-f-]{36}$/);

  const having = async (): Promise<string[]> => {
    const ids = [...folders.keys()];
    const listed = await Promise.all(ids.map((id) => readdir(folders.get(id) ?? '').catch(() => [])));
    return ids.filter((_, at) => (listed[at]?.length ?? 0) > 0);
  };
  const [captured = '', ...more] = await having();
  assert.deepEqual(more, []);
  await operator('POST', `/operator/hosts/${captured}/drain`, {});
  const moved = await eventually(
    'a call starts an instance elsewhere',
    async () => {
      // The instance on the other host ends when it is idle.
      await sleep(5_000);
      const answer = await call();
      return answer.cold && answer;
    },
    PATIENCE_MS,
  );
  assert.equal(moved.text, had.text);
  assert.equal((await having()).length, 2);
  const largest = Math.max(...(await sizes()));
  t.diagnostic(`the largest part has ${Math.round(largest / 1024 / 1024)} MiB`);
  assert.ok(largest < (memMib / 4) * 1024 * 1024, `holes were uploaded: ${largest} bytes`);

  assert.equal((await service.call('DELETE', '/fns/restored')).status, 204);
  await eventually('no host has its memory', async () => (await having()).length === 0, PATIENCE_MS);
});
