/** The keys that all servers of a deployment share, while servers have different key files. */
import assert from 'node:assert/strict';
import { copyFile, readFile, writeFile } from 'node:fs/promises';
import { describe, it } from 'node:test';
import { keyPath } from '@releap/testing/keys';
import { openFresh, quiet } from '@releap/testing/postgres';
import {
  createServiceKeys,
  ENCRYPTED_SERVICE_KEYS,
  type ServiceKeys,
} from '../src/platform/credentials/service-keys.ts';
import { createEncryption } from '../src/platform/encryption/encryption.ts';
import { addKey, fileKeys, makeKeyFile, promoteKey } from '../src/platform/encryption/key-file.ts';
import { KeysUnavailableError } from '../src/platform/encryption/keys.ts';
import { rewrapAll } from '../src/platform/encryption/rewrap.ts';

const database = await openFresh();

const encryptionOf = (file: string) => createEncryption(fileKeys(file, quiet));
/** As a server that starts now. It reads a key again at each use. */
const serverOf = (file: string): ServiceKeys =>
  createServiceKeys({ database, encryption: encryptionOf(file), maxAgeMs: 0, log: quiet });
const rewrap = (file: string) =>
  rewrapAll(database, encryptionOf(file), [ENCRYPTED_SERVICE_KEYS], quiet, new AbortController().signal);
async function rows(): Promise<Record<string, string>> {
  const { rows: all } = await database.pool.query<{ name: string; row: string }>(
    `select name, encode(envelope, 'hex') as row from service_keys`,
  );
  return Object.fromEntries(all.map(({ name, row }) => [name, row]));
}
async function empty(): Promise<{ a: string; b: string }> {
  await database.pool.query('delete from service_keys');
  const [a, b] = [keyPath(), keyPath()];
  await makeKeyFile(a);
  await copyFile(a, b);
  return { a, b };
}

describe('a server without the key that another server encrypts with', () => {
  it('overwrites no service key, keeps those that it has read, and reads them again when it gets the key', async () => {
    const { a, b } = await empty();
    const running = serverOf(b);
    const root = await running.get('egress-root');
    const tokens = await serverOf(a).get('data-tokens');
    await addKey(a);
    await promoteKey(a);
    assert.equal((await rewrap(a)).failed, 0);
    const before = await rows();

    assert.equal(await running.get('egress-root'), root);
    const restarted = serverOf(b);
    for (const name of ['egress-root', 'data-tokens'] as const) {
      await assert.rejects(restarted.get(name), (error: unknown) => {
        assert.ok(error instanceof KeysUnavailableError);
        assert.match(error.message, /has no key/);
        return true;
      });
      await assert.rejects(
        restarted.update(name, async () => 'another'),
        KeysUnavailableError,
      );
    }
    await rewrap(b);
    assert.deepEqual(await rows(), before);

    await copyFile(a, b);
    assert.equal(await restarted.get('egress-root'), root);
    assert.equal(await restarted.get('data-tokens'), tokens);
  });

  it('is never one during a rotation in two steps', async () => {
    const { a, b } = await empty();
    const value = await serverOf(a).get('preview-tokens');
    const readable = async (): Promise<void> => {
      for (const file of [a, b]) assert.equal(await serverOf(file).get('preview-tokens'), value);
    };
    await addKey(a);
    assert.equal((await rewrap(a)).done, 0, 'a key that is not promoted wraps nothing');
    await readable();
    await copyFile(a, b);
    await promoteKey(a);
    assert.deepEqual(await rewrap(a), { done: 1, failed: 0 });
    await readable();
    await copyFile(a, b);
    await readable();
  });

  it('is never one after a clock was set back: the key that was added last is promoted', async () => {
    const { a } = await empty();
    const text = await readFile(a, 'utf8');
    await writeFile(a, text.replace(/"created_at": "[^"]*"/, '"created_at": "2999-12-31T23:59:59.999Z"'));
    for (let n = 0; n < 2; n++) {
      const id = await addKey(a);
      await assert.rejects(addKey(a), /has a key that does not encrypt yet/);
      assert.equal(await promoteKey(a), id);
    }
  });
});

describe('a service key', () => {
  it('that another server has changed is read again, whatever its name', async () => {
    const { a } = await empty();
    const [one, other] = [serverOf(a), serverOf(a)];
    for (const name of ['idempotency', 'data-tokens', 'egress-root', 'preview-tokens', 'dispatch'] as const) {
      await one.get(name);
      assert.ok(await other.update(name, async (value) => `${value} changed`));
      assert.match(await one.get(name), / changed$/);
    }
  });

  it('that is damaged is refused and stays as it is, until the operator deletes its row', async () => {
    const { a } = await empty();
    const value = await serverOf(a).get('dispatch');
    await database.pool.query(`update service_keys set envelope = '\\x0100'`);
    await assert.rejects(serverOf(a).get('dispatch'), (error: unknown) => {
      assert.ok(error instanceof KeysUnavailableError);
      assert.match(error.message, /service key dispatch is damaged .* is not replaced by the server/);
      return true;
    });
    assert.deepEqual(await rows(), { dispatch: '0100' });
    await database.pool.query('delete from service_keys');
    assert.notEqual(await serverOf(a).get('dispatch'), value);
  });

  it('stays in use on a server whose key file becomes unreadable', async () => {
    const { a } = await empty();
    const server = serverOf(a);
    const value = await server.get('dispatch');
    await writeFile(a, 'not json');
    assert.equal(await server.get('dispatch'), value);
    await assert.rejects(serverOf(a).get('dispatch'), KeysUnavailableError);
  });
});
