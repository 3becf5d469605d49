/** An image store of a test, and what tests assert of one. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { pino } from 'pino';
import type { ImageLimits } from '../../src/image/image-limits.ts';
import { ImageError, ImageStore } from '../../src/image/image-store.ts';

export type TestStore = ImageStore & AsyncDisposable & { images: string };

export function openTestStore(
  cacheDir: string,
  limits: Partial<ImageLimits> = {},
  privateHosts: readonly string[] = ['loopback'],
): TestStore {
  const store = new ImageStore({ cacheDir, log: pino({ level: 'silent' }), limits, privateHosts });
  return Object.assign(store, {
    images: path.join(cacheDir, 'images'),
    [Symbol.asyncDispose]: async () => await store.close(),
  });
}

export async function refuses(promise: Promise<unknown>, code: string, message: RegExp): Promise<void> {
  await assert.rejects(promise, (error: unknown) => {
    assert.ok(error instanceof ImageError, String(error));
    assert.match(error.message, message);
    assert.equal(error.code, code, error.message);
    return true;
  });
}

/** Nothing unfinished may be left. */
export async function assertTidy(store: TestStore): Promise<void> {
  assert.deepEqual(await readdir(path.join(store.images, 'staging')), []);
}
