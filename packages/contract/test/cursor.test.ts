import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import * as fc from 'fast-check';
import {
  ApiError,
  cursorKind,
  decodeCursor,
  decodeKeyCursor,
  encodeCursor,
  encodeKeyCursor,
  IMAGE_CURSORS,
  LIST_CURSORS,
  SANDBOX_CURSORS,
} from '../src/index.ts';

const position = fc.record({
  created_at: fc
    .tuple(
      fc.date({
        min: new Date('0001-01-01T00:00:00Z'),
        max: new Date('9999-12-31T23:59:59Z'),
        noInvalidDate: true,
      }),
      fc.nat(999_999),
    )
    .map(([date, micros]) => `${date.toISOString().slice(0, 19)}.${String(micros).padStart(6, '0')}Z`),
  id: fc.uuid(),
});

function isMalformed(error: unknown): boolean {
  return error instanceof ApiError && error.status === 400 && error.message.startsWith('malformed cursor');
}

test('a cursor gives back its position to the microsecond', () => {
  fc.assert(
    fc.property(position, (at) => {
      assert.deepEqual(decodeCursor(SANDBOX_CURSORS, encodeCursor(SANDBOX_CURSORS, at)), { ...at });
    }),
  );
});

test('a cursor needs no escaping in a URL', () => {
  fc.assert(
    fc.property(position, (at) => {
      const cursor = encodeCursor(IMAGE_CURSORS, at);
      assert.equal(encodeURIComponent(cursor), cursor);
    }),
  );
});

test('a cursor of another list is malformed', () => {
  fc.assert(
    fc.property(position, (at) => {
      assert.throws(() => decodeCursor(IMAGE_CURSORS, encodeCursor(SANDBOX_CURSORS, at)), isMalformed);
    }),
  );
});

test('a cursor with any character changed, added or cut off is malformed', () => {
  fc.assert(
    fc.property(
      position,
      fc.nat(60),
      fc.constantFrom('A', 'b', '-', '_', '=', '+', ' ', ''),
      (at, where, char) => {
        const cursor = encodeCursor(SANDBOX_CURSORS, at);
        const changed = cursor.slice(0, where) + char + cursor.slice(where + 1);
        if (changed === cursor) return;
        assert.throws(() => decodeCursor(SANDBOX_CURSORS, changed), isMalformed);
      },
    ),
  );
});

test('any other text is a malformed cursor', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.base64String()), (text) => {
      assert.throws(() => decodeCursor(SANDBOX_CURSORS, text), isMalformed);
    }),
  );
});

test('a Date and a time without a fraction are positions too', () => {
  const id = '01234567-89ab-4def-8123-456789abcdef';
  const read = (at: string | Date): string =>
    decodeCursor(SANDBOX_CURSORS, encodeCursor(SANDBOX_CURSORS, { created_at: at, id })).created_at;
  assert.equal(read(new Date('2026-01-02T03:04:05.678Z')), '2026-01-02T03:04:05.678000Z');
  assert.equal(read('2026-01-02T03:04:05Z'), '2026-01-02T03:04:05.000000Z');
  assert.equal(read('2026-01-02T03:04:05.1+00:00'), '2026-01-02T03:04:05.100000Z');
});

test('making a cursor of an invalid position is a bug and throws', () => {
  const id = '01234567-89ab-4def-8123-456789abcdef';
  assert.throws(() => encodeCursor(SANDBOX_CURSORS, { created_at: 'yesterday', id }), TypeError);
  assert.throws(
    () => encodeCursor(SANDBOX_CURSORS, { created_at: '2026-01-02T03:04:05+02:00', id }),
    TypeError,
  );
  assert.throws(() => encodeCursor(SANDBOX_CURSORS, { created_at: new Date(), id: 'x' }), TypeError);
});

test('no two lists share a cursor kind', () => {
  assert.throws(() => cursorKind(SANDBOX_CURSORS.number), /two lists have cursors of kind 1/);
  for (const number of [0, 256, 1.5]) assert.throws(() => cursorKind(number), RangeError);
});

test('a cursor of keys returns them, and is refused by another list, when it is cut or forged, or has other keys', () => {
  const { volumes, secrets } = LIST_CURSORS;
  const keys = ['2026-01-02 03:04:05.000006+00', 'an "odd" näme'];
  const cursor = encodeKeyCursor(volumes, keys);
  assert.deepEqual(decodeKeyCursor(volumes, cursor, 2), keys);
  const refused = { status: 400, code: 'invalid_cursor' };
  for (const text of ['', 'x', cursor.slice(0, -1), `${cursor}=`, cursor.toLowerCase()])
    assert.throws(() => decodeKeyCursor(volumes, text, 2), refused, text);
  assert.throws(() => decodeKeyCursor(secrets, cursor, 2), refused);
  assert.throws(() => decodeKeyCursor(volumes, cursor, 1), refused);
  const old = encodeCursor(SANDBOX_CURSORS, { created_at: new Date(0), id: randomUUID() });
  assert.throws(() => decodeKeyCursor(volumes, old, 2), refused);
});
