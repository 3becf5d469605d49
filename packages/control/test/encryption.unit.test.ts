import assert from 'node:assert/strict';
import { chmod, chown, copyFile, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { describe, it } from 'node:test';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { createEncryption, SealBrokenError, type Owner } from '../src/platform/encryption/encryption.ts';
import {
  addKey,
  fileKeys,
  makeKeyFile,
  problemOfAccess,
  promoteKey,
} from '../src/platform/encryption/key-file.ts';
import { KeysUnavailableError } from '../src/platform/encryption/keys.ts';
import { quiet } from '@releap/testing/logging';
import { keyPath } from '@releap/testing/keys';
import { propertyRuns } from '@releap/testing/repetitions';

const owner: Owner = { kind: 'secret', projectId: '6f1ed002-ab5d-4f1c-9e35-000000000001', name: 'TOKEN' };
const text = fc.string({ unit: 'grapheme', maxLength: 300 });

async function open(file = keyPath()) {
  await makeKeyFile(file);
  const keys = fileKeys(file, quiet);
  return { file, keys, encryption: createEncryption(keys) };
}
const unavailable = (why: RegExp) => (error: unknown) =>
  error instanceof KeysUnavailableError && why.test(error.message);

describe('an encrypted value', () => {
  it('is decrypted for its owner, and contains no part of the plain text', async () => {
    const { encryption } = await open();
    await fc.assert(
      fc.asyncProperty(text, async (value) => {
        const sealed = await encryption.encrypt(value, owner);
        assert.equal(await encryption.decrypt(sealed, owner), value);
        if (value.length > 3) assert.equal(sealed.envelope.includes(value), false);
      }),
      { numRuns: propertyRuns(30) },
    );
  });

  it('is never the same twice', async () => {
    const { encryption } = await open();
    const [a, b] = await Promise.all([encryption.encrypt('x', owner), encryption.encrypt('x', owner)]);
    assert.notDeepEqual(a.envelope, b.envelope);
  });

  it('does not open for another project, name or kind', async () => {
    const { encryption } = await open();
    const sealed = await encryption.encrypt('value', owner);
    for (const other of [
      { ...owner, projectId: '6f1ed002-ab5d-4f1c-9e35-000000000002' },
      { ...owner, name: 'TOKEN2' },
      { ...owner, kind: 'registry-password' as const },
    ]) {
      await assert.rejects(encryption.decrypt(sealed, other), SealBrokenError);
      await assert.rejects(encryption.rewrap(sealed, other), SealBrokenError);
    }
  });

  it('does not open when any byte of it is changed, or it is truncated', async () => {
    const { encryption } = await open();
    const sealed = await encryption.encrypt('some value', owner);
    for (let at = 0; at < sealed.envelope.length; at++) {
      const envelope = Buffer.from(sealed.envelope);
      envelope[at] = (envelope[at] ?? 0) ^ 1;
      await assert.rejects(encryption.decrypt({ ...sealed, envelope }, owner), SealBrokenError, `byte ${at}`);
      const cut = sealed.envelope.subarray(0, at);
      await assert.rejects(encryption.decrypt({ ...sealed, envelope: cut }, owner), SealBrokenError);
    }
  });

  it('is not opened by another key of the same id', async () => {
    const one = await open();
    const other = await open();
    const sealed = await one.encryption.encrypt('value', owner);
    await assert.rejects(other.encryption.decrypt(sealed, owner), unavailable(/has no key/));
    const keyId = await other.encryption.currentKey();
    await assert.rejects(other.encryption.decrypt({ ...sealed, keyId }, owner), SealBrokenError);
  });
});

describe('rotation', () => {
  it('an added key opens values and wraps none before it is promoted; then it does, at once, and older ones still open', async () => {
    const { file, encryption } = await open();
    const old = await encryption.encrypt('old', owner);
    const other = await open();
    const id = await addKey(file);
    await assert.rejects(addKey(file), unavailable(new RegExp(`${id}: distribute the file`)));
    await copyFile(file, other.file);
    assert.equal((await encryption.encrypt('between', owner)).keyId, old.keyId);
    assert.equal(await promoteKey(other.file), id);
    // A server whose file still has the old order reads what one with the new order writes.
    assert.equal(await encryption.decrypt(await other.encryption.encrypt('early', owner), owner), 'early');
    await promoteKey(file);
    await assert.rejects(promoteKey(file), unavailable(/is the current one: add a key first/));
    const fresh = await encryption.encrypt('new', owner);
    assert.equal(fresh.keyId, id);
    assert.notEqual(old.keyId, id);
    assert.equal(await encryption.decrypt(old, owner), 'old');
    assert.equal((await stat(file)).mode & 0o777, 0o600);
  });

  it('rewraps an old value without changing it; then the old key may be removed', async () => {
    const { file, encryption } = await open();
    const old = await encryption.encrypt('value', owner);
    const id = await addKey(file);
    await promoteKey(file);
    const again = await encryption.rewrap(old, owner);
    assert.equal(again.keyId, id);
    const { keys } = JSON.parse(await readFile(file, 'utf8')) as { keys: { id: string }[] };
    await writeFile(file, JSON.stringify({ keys: keys.filter((key) => key.id === id) }));
    assert.equal(await encryption.decrypt(again, owner), 'value');
    await assert.rejects(encryption.decrypt(old, owner), unavailable(/has no key/));
  });
});

describe('the key file', () => {
  it('is made with mode 0600 when nothing is encrypted yet, by one of those that start together', async () => {
    const file = keyPath();
    const all = Array.from({ length: 8 }, () => fileKeys(file, quiet));
    await Promise.all(all.map((keys) => keys.prepare(true)));
    const ids = await Promise.all(all.map((keys) => keys.current()));
    assert.equal(new Set(ids).size, 1);
    assert.equal((await stat(file)).mode & 0o777, 0o600);
  });

  it('is not created again while there are values that the lost one would open', async () => {
    const keys = fileKeys(keyPath(), quiet);
    await keys.prepare(false);
    await assert.rejects(keys.current(), unavailable(/does not exist/));
  });

  it('is refused while other users may read it, and accepted once they may not', async () => {
    const { file, keys } = await open();
    for (const mode of [0o640, 0o604, 0o660, 0o622]) {
      await chmod(file, mode);
      await assert.rejects(keys.current(), unavailable(/may be read by others \(mode 06/));
    }
    await chmod(file, 0o400);
    assert.ok(await keys.current());
  });

  it('of root may be read by its group, where the process is not root', () => {
    const of = (mode: number, uid: number, self: number) =>
      problemOfAccess({ mode: 0o100_000 | mode, uid }, self);
    for (const mode of [0o440, 0o640, 0o400]) assert.equal(of(mode, 0, 1000), undefined);
    for (const mode of [0o444, 0o460, 0o441, 0o604])
      assert.match(of(mode, 0, 1000) ?? '', /may be read by others/);
    assert.match(of(0o440, 0, 0) ?? '', /may be read by others \(mode 0440\)/);
    assert.match(of(0o440, 1000, 1000) ?? '', /may be read by others/);
    assert.match(of(0o400, 1001, 1000) ?? '', /belongs to user 1001/);
  });

  it('is refused when it is another user’s', { skip: process.getuid?.() !== 0 && 'needs root' }, async () => {
    const { file, keys } = await open();
    // Root's own file is trusted by every user; that of another user is not trusted by root.
    await chown(file, 12_345, 12_345);
    await assert.rejects(keys.current(), unavailable(/belongs to user 12345/));
  });

  it('that goes away or breaks is noticed at once, and so is its return', async () => {
    const { file, keys, encryption } = await open();
    const sealed = await encryption.encrypt('value', owner);
    await rename(file, `${file}.away`);
    await assert.rejects(keys.wrap(Buffer.alloc(32), Buffer.alloc(0)), unavailable(/does not exist/));
    await assert.rejects(encryption.decrypt(sealed, owner), unavailable(/does not exist/));
    await rename(`${file}.away`, file);
    assert.equal(await encryption.decrypt(sealed, owner), 'value');
    await rm(file);
  });

  it('with other content is refused, and the error does not contain its content', async () => {
    const key = Buffer.alloc(32, 7).toString('base64');
    for (const content of [
      '',
      'not json',
      '[]',
      '{"keys":[]}',
      `{"keys":[{"id":"a","created_at":"x","key":"${key.slice(4)}"}]}`,
      `{"keys":[{"id":"a b","created_at":"x","key":"${key}"}]}`,
      `{"keys":[{"id":"a","created_at":"x","key":"${key}"},{"id":"a","created_at":"x","key":"${key}"}]}`,
      `{"keys":[${key}]}`,
      ' '.repeat(70_000),
    ]) {
      const file = keyPath();
      await writeFile(file, content, { mode: 0o600 });
      const lines: string[] = [];
      const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) });
      await assert.rejects(fileKeys(file, log).current(), (error: unknown) => {
        assert.ok(error instanceof KeysUnavailableError);
        assert.doesNotMatch(`${error.stack}${String(error.cause)}${lines.join('')}`, /BwcHBw/);
        return true;
      });
      assert.equal(lines.length, 1);
    }
  });
});
