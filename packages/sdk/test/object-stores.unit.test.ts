import assert from 'node:assert/strict';
import { test } from 'node:test';
import { unmountStores } from '../src/index.ts';

test('a mount or unmount is waited for longer than the service waits for its host (90 s), before a sandbox is deleted', async () => {
  const asked: (number | undefined)[] = [];
  const api = {
    listObjectStoreMounts: async () => ({
      object_store_mounts: [{ object_store: 'models', read_only: false }],
    }),
    unmountObjectStore: async (_request: object, call: { timeoutMs?: number } = {}) => {
      asked.push(call.timeoutMs);
      return { object_store: 'models', mount_paths: ['/m'] };
    },
  };
  await unmountStores({ api, patient: api } as unknown as Parameters<typeof unmountStores>[0], 'vm', 0);
  assert.equal(asked.length, 1);
  assert.ok((asked[0] ?? 0) > 90_000);
});
