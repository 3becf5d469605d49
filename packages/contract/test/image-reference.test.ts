import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import {
  IMAGE_REFERENCE_MAX_LENGTH,
  ImageReferenceError,
  normalizeRegistryHost,
  parseImageReference,
} from '../src/rules/resources/image-reference.ts';

const DIGEST = `sha256:${'0123456789abcdef'.repeat(4)}`;

test('an unqualified reference means Docker Hub, its library and latest', () => {
  assert.deepEqual(parseImageReference('node'), {
    host: 'index.docker.io',
    repository: 'library/node',
    tag: 'latest',
    canonical: 'index.docker.io/library/node:latest',
  });
  assert.equal(parseImageReference('node:20').canonical, 'index.docker.io/library/node:20');
  assert.equal(parseImageReference('grafana/loki').canonical, 'index.docker.io/grafana/loki:latest');
});

test('the first part is a host when it looks like one', () => {
  const cases: [string, string, string][] = [
    ['localhost/app', 'localhost', 'app'],
    ['localhost:5000/app', 'localhost:5000', 'app'],
    ['LOCALHOST:5000/app', 'localhost:5000', 'app'],
    ['ghcr.io/org/app:v1', 'ghcr.io', 'org/app'],
    ['my-registry:8080/a/b/c', 'my-registry:8080', 'a/b/c'],
    ['127.0.0.1:5000/app', '127.0.0.1:5000', 'app'],
    ['[::1]:5000/app', '[::1]:5000', 'app'],
    ['docker.io/node', 'index.docker.io', 'library/node'],
    ['registry-1.docker.io/library/node', 'index.docker.io', 'library/node'],
    ['registry.hub.docker.com/org/app', 'index.docker.io', 'org/app'],
    ['org/app', 'index.docker.io', 'org/app'],
  ];
  for (const [text, host, repository] of cases) {
    const parsed = parseImageReference(text);
    assert.equal(parsed.host, host, text);
    assert.equal(parsed.repository, repository, text);
  }
});

test('a digest follows a tag, or is there without one', () => {
  const pinned = parseImageReference(`localhost:5000/app@${DIGEST}`);
  assert.equal(pinned.digest, DIGEST);
  assert.equal(pinned.tag, undefined);
  const both = parseImageReference(`app:1.0@${DIGEST}`);
  assert.equal(both.canonical, `index.docker.io/library/app:1.0@${DIGEST}`);
});

test('what does not fit is refused with the part that does not', () => {
  const cases: [string, RegExp][] = [
    ['', /is empty/],
    ['a'.repeat(IMAGE_REFERENCE_MAX_LENGTH + 1), /513 characters, at most 512/],
    ['https://ghcr.io/a', /has a scheme/],
    ['docker://a', /has a scheme/],
    ['Node:20', /names are lower case/],
    ['a b', /has the name "a b"/],
    ['a//b', /has the name/],
    ['a/', /has the name/],
    ['../etc', /not a host name/],
    ['a/../b', /has the name/],
    ['-a', /has the name/],
    ['a:', /has the tag ""/],
    ['a:.x', /has the tag ".x"/],
    [`a:${'t'.repeat(129)}`, /a tag has 1 to 128/],
    ['a@sha256:12', /has the digest "sha256:12"/],
    [`a@sha512:${'0'.repeat(128)}`, /only sha256/],
    ['0'.repeat(64), /bare image id/],
    ['host:0/app', /port that is not between/],
    ['host:99999/app', /port that is not between/],
    ['ho_st.x/app', /not a host name/],
    [`${'a/'.repeat(130)}a`, /at most 255/],
    ['a\n', /has the name "a\\n"/],
    ['--option', /has the name/],
  ];
  for (const [text, message] of cases) {
    assert.throws(
      () => parseImageReference(text),
      (error: Error) => {
        assert.ok(error instanceof ImageReferenceError, text);
        assert.match(error.message, message, text);
        return true;
      },
    );
  }
});

test('a registry host is normalised, and anything more than a host is refused', () => {
  assert.equal(normalizeRegistryHost('Docker.IO'), 'index.docker.io');
  assert.equal(normalizeRegistryHost('GHCR.io'), 'ghcr.io');
  for (const text of [
    'https://ghcr.io',
    'ghcr.io/',
    'ghcr.io/a',
    'a:b',
    '',
    'a b',
    'user@host',
    '[::1',
    '-a.b',
  ]) {
    assert.throws(() => normalizeRegistryHost(text), ImageReferenceError, text);
  }
});

test('any text is either refused or read to a fixed point', () => {
  const part = fc.stringMatching(/^[a-z0-9]{1,5}(?:[._-][a-z0-9]{1,5})?$/);
  const likely = fc
    .tuple(
      fc.option(fc.constantFrom('localhost', 'localhost:5000', 'ghcr.io', 'docker.io', '[::1]:1', 'A.b:80'), {
        nil: undefined,
      }),
      fc.array(part, { minLength: 1, maxLength: 4 }),
      fc.option(fc.stringMatching(/^[\w.-]{0,10}$/), { nil: undefined }),
      fc.option(fc.constantFrom(DIGEST, 'sha256:x'), { nil: undefined }),
    )
    .map(
      ([host, path, tag, digest]) =>
        `${host === undefined ? '' : `${host}/`}${path.join('/')}${tag === undefined ? '' : `:${tag}`}${digest === undefined ? '' : `@${digest}`}`,
    );
  fc.assert(
    fc.property(
      fc.oneof(likely, fc.string({ maxLength: 60 }), fc.string({ unit: 'binary', maxLength: 600 })),
      (text) => {
        let parsed;
        try {
          parsed = parseImageReference(text);
        } catch (error) {
          assert.ok(error instanceof ImageReferenceError);
          assert.ok(error.message.length < 500);
          return;
        }
        assert.deepEqual(parseImageReference(parsed.canonical), parsed);
        assert.equal(normalizeRegistryHost(parsed.host), parsed.host);
        assert.doesNotMatch(parsed.canonical, /[\s'"$;&|\\]/);
      },
    ),
    { numRuns: propertyRuns(2000) },
  );
});
