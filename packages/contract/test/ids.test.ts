import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import {
  bearerToken,
  formatSandboxId,
  isRegionSlug,
  newSandboxName,
  newToken,
  newUuid,
  parseSandboxId,
  TOKEN_PREFIXES,
  type TokenKind,
  tokenDigest,
  tokenKind,
  tokenPrefix,
} from '../src/index.ts';

const region = fc.stringMatching(/^[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?$/);
const kinds = Object.keys(TOKEN_PREFIXES) as TokenKind[];

test('a sandbox id goes to its UUID and region and back', () => {
  fc.assert(
    fc.property(region, fc.uuid(), (slug, uuid) => {
      const id = formatSandboxId(slug, uuid);
      assert.match(id, /^[a-z][a-z0-9-]*-[a-z2-7]{26}$/);
      assert.deepEqual(parseSandboxId(id), { uuid, region: slug });
    }),
  );
});

test('a sandbox id with the longest region and a port is one label of a host name', () => {
  const slug = 'r'.repeat(30);
  assert.ok(isRegionSlug(slug));
  assert.equal(`65535-${formatSandboxId(slug, newUuid())}`.length, 63);
});

test('a bare UUID is accepted in either case and read as lower case', () => {
  fc.assert(
    fc.property(fc.uuid(), (uuid) => {
      assert.deepEqual(parseSandboxId(uuid.toUpperCase()), { uuid, region: null });
    }),
  );
});

test('every id has one spelling: what parses is what would be made', () => {
  const text = fc.oneof(
    fc.string(),
    fc.stringMatching(/^[a-z]{0,3}-[a-z2-7]{26}$/),
    fc.stringMatching(/^[a-z]-[A-Za-z0-9]{26}$/),
  );
  fc.assert(
    fc.property(text, (candidate) => {
      const parsed = parseSandboxId(candidate);
      if (parsed === null) return;
      if (parsed.region === null) assert.equal(candidate.toLowerCase(), parsed.uuid);
      else assert.equal(formatSandboxId(parsed.region, parsed.uuid), candidate);
    }),
    { numRuns: propertyRuns(2000) },
  );
});

test('ids that are not are null', () => {
  const good = formatSandboxId('local', 'ffffffff-ffff-4fff-bfff-ffffffffffff');
  assert.ok(parseSandboxId(good));
  const bad = [
    '',
    '-',
    'local',
    good.toUpperCase(),
    good.slice(1).slice(4),
    good.slice(0, -1),
    `${good}a`,
    `-${good}`,
  ];
  // 130 bits: the same 128, and one beyond.
  const beyond = `local-z${good.slice(7)}`;
  for (const text of [
    ...bad,
    beyond,
    good.replace('local-', 'local_'),
    ` ${good}`,
    `${good}\n`,
    '../../etc/passwd',
  ])
    assert.equal(parseSandboxId(text), null, text);
});

test('making an id of what is no region or UUID is a bug and throws', () => {
  assert.throws(() => formatSandboxId('Local', newUuid()), TypeError);
  assert.throws(() => formatSandboxId('local', 'x'), TypeError);
});

test('a token has its prefix, is told by it, and is of one length', () => {
  fc.assert(
    fc.property(fc.constantFrom(...kinds), fc.uint8Array({ minLength: 32, maxLength: 32 }), (kind, bytes) => {
      const token = newToken(kind, bytes);
      assert.equal(token.length, TOKEN_PREFIXES[kind].length + 43);
      assert.equal(tokenKind(token), kind);
      assert.ok(token.startsWith(tokenPrefix(token)));
      assert.equal(tokenDigest(token).length, 32);
    }),
  );
});

test('different bytes give different tokens', () => {
  const bytes = fc.uint8Array({ minLength: 32, maxLength: 32 });
  fc.assert(
    fc.property(bytes, bytes, (a, b) => {
      assert.equal(newToken('apiKey', a) === newToken('apiKey', b), Buffer.from(a).equals(Buffer.from(b)));
    }),
  );
});

test('what is no token of ours has no kind', () => {
  const token = newToken('apiKey');
  for (const text of [
    '',
    'rlp_',
    token.slice(0, -1),
    `${token}0`,
    `x${token}`,
    `rlpx_${token.slice(4)}`,
    `${token.slice(0, -1)}-`,
    `${token}\n`,
  ])
    assert.equal(tokenKind(text), null, text);
  fc.assert(fc.property(fc.string(), (text) => tokenKind(text) === null));
});

test('a bearer header is read as RFC 6750 says, and nothing else is', () => {
  assert.equal(bearerToken('Bearer abc'), 'abc');
  assert.equal(bearerToken('bearer  abc '), 'abc');
  for (const header of [
    undefined,
    '',
    'abc',
    'Basic abc',
    'Bearer',
    'Bearer ',
    'Bearer a b',
    'Bearer a\u0000',
    `Bearer ${'a'.repeat(5000)}`,
  ])
    assert.equal(bearerToken(header), null, header);
});

test('a generated name is sandbox- and 8 hex digits', () => {
  assert.match(newSandboxName(), /^sandbox-[0-9a-f]{8}$/);
});
