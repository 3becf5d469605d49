import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { formatJoinToken, isJoinToken, parseJoinToken } from '../src/rules/join-token.ts';

const TOKEN = {
  controlUrl: 'https://[fd00::1]:7072',
  fingerprint: '5b'.repeat(32),
  secret: `rlpj_${'s'.repeat(43)}`,
};

test('a join token is one word that has the URL, the fingerprint and the secret', () => {
  const text = formatJoinToken(TOKEN);
  assert.match(text, /^rlpjoin_[A-Za-z0-9_-]{43,1016}$/);
  assert.ok(isJoinToken(text));
  assert.deepEqual(parseJoinToken(text), TOKEN);
  assert.deepEqual(parseJoinToken(formatJoinToken({ ...TOKEN, controlUrl: `${TOKEN.controlUrl}/` })), TOKEN);
});

test('one that was cut off, changed or lengthened is refused, and not repeated in the error', () => {
  const text = formatJoinToken(TOKEN);
  const wrong = [
    ...Array.from(text, (_, at) => text.slice(0, at)),
    `${text}AAAA`,
    `${text.slice(0, 40)}\n${text.slice(40)}`,
    text.replace(/.{8}$/, 'AAAAAAAA'),
    `${text.slice(0, 60)}${text[60] === 'A' ? 'B' : 'A'}${text.slice(61)}`,
    TOKEN.secret,
  ];
  for (const one of wrong)
    assert.throws(
      () => parseJoinToken(one),
      (error: Error) => /^(the join token is incomplete|a join token begins)/.test(error.message),
      one,
    );
});

test('one of a later version, or without a URL that can be used, is refused with the reason', () => {
  const content = Buffer.concat([Buffer.of(2), Buffer.from('whatever comes then')]);
  const sum = createHash('sha256').update(content).digest().subarray(0, 4);
  const later = `rlpjoin_${Buffer.concat([content, sum]).toString('base64url')}`;
  assert.throws(() => parseJoinToken(later), /later version/);
  for (const controlUrl of ['http://10.0.0.1:7072', 'https://user@host', 'https://host/path'])
    assert.throws(
      () => parseJoinToken(formatJoinToken({ ...TOKEN, controlUrl })),
      /incomplete or was changed/,
    );
  assert.throws(() => formatJoinToken({ ...TOKEN, controlUrl: `https://${'h'.repeat(300)}` }), /longer than/);
});
