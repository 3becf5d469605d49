import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as fc from 'fast-check';
import {
  ApiError,
  checkAllowedDomain,
  checkRegistryHost,
  parseImageReference,
  resolveRegistryWrite,
  resolveSandboxCreate,
  resolveSecretWrite,
  validate,
  RegistryWrite,
  SecretWrite,
} from '../src/index.ts';

const refusal = (work: () => unknown): string => {
  try {
    work();
  } catch (error) {
    assert.ok(error instanceof ApiError);
    assert.equal(error.status, 400);
    return error.message;
  }
  return assert.fail('was not refused');
};
const domain = fc.domain().map((name) => name.toLowerCase());
const label = fc.stringMatching(/^[a-z0-9](?:[a-z0-9-]{0,10}[a-z0-9])?$/);

describe('allowed_domains', () => {
  test('takes exact host names and *. wildcards, in one spelling', () => {
    for (const [given, kept] of [
      ['api.example.com', 'api.example.com'],
      ['API.Example.COM', 'api.example.com'],
      ['*.Example.com', '*.example.com'],
      ['example.com.', 'example.com'],
      ['localhost', 'localhost'],
      ['_dmarc.example.com', '_dmarc.example.com'],
    ] as const)
      assert.equal(checkAllowedDomain(given), kept);
  });

  for (const bad of [
    '',
    '*',
    '*.',
    '.',
    'https://example.com',
    'example.com/path',
    'example.com:443',
    '*.example.com:443',
    'a.*.example.com',
    '**.example.com',
    'exa mple.com',
    'user@example.com',
    '10.0.0.1',
    '*.0.0.1',
    '::1',
    '[::1]',
    '-a.example.com',
    'a..example.com',
    'bücher.example',
    `${'a'.repeat(64)}.com`,
    `${'a.'.repeat(127)}com`,
  ])
    test(`refuses ${JSON.stringify(bad).slice(0, 40)}`, () => {
      assert.match(
        refusal(() => checkAllowedDomain(bad)),
        /without scheme, path and port/,
      );
    });

  test('takes every domain, with a wildcard or without, and what it keeps it keeps again', () => {
    fc.assert(
      fc.property(domain, fc.boolean(), (name, wildcard) => {
        const entry = wildcard ? `*.${name}` : name;
        assert.equal(checkAllowedDomain(entry), entry);
        assert.equal(checkAllowedDomain(entry.toUpperCase()), entry);
        assert.equal(checkAllowedDomain(`${entry}.`), entry);
      }),
    );
  });

  test('whatever it is given, it keeps nothing with a scheme, a path, a port, a space or an upper-case letter', () => {
    fc.assert(
      fc.property(fc.oneof(fc.string({ unit: 'binary' }), fc.webUrl(), fc.ipV4(), fc.ipV6()), (text) => {
        let kept: string;
        try {
          kept = checkAllowedDomain(text);
        } catch (error) {
          assert.ok(error instanceof ApiError && error.status === 400);
          return;
        }
        assert.match(kept, /^(?:\*\.)?[a-z0-9_][a-z0-9_.-]*$/);
        assert.equal(checkAllowedDomain(kept), kept);
      }),
    );
  });
});

describe('a secret', () => {
  const write = (name: string, body: unknown) =>
    resolveSecretWrite(name, validate(SecretWrite, 'body', body));

  test('has defaults, and each domain once', () => {
    assert.deepEqual(write('A', { value: '' }), {
      name: 'A',
      value: '',
      allowedDomains: [],
      allowHttp: false,
      description: null,
    });
    assert.deepEqual(write('_a1', { value: 'x', allowed_domains: ['a.b', 'A.B', '*.a.b'] }).allowedDomains, [
      'a.b',
      '*.a.b',
    ]);
  });

  test('name: [A-Za-z_][A-Za-z0-9_]*, at most 256 characters', () => {
    assert.equal(write('N'.repeat(256), { value: '' }).name.length, 256);
    for (const name of ['', '1A', 'A-B', 'A.B', 'Ä', 'A B', 'A\n', 'N'.repeat(257)])
      assert.match(
        refusal(() => write(name, { value: '' })),
        /a secret's name must match/,
      );
  });

  test('value: at most 64 KiB of UTF-8, and never shown', () => {
    assert.equal(write('A', { value: 'ü'.repeat(32 * 1024) }).value.length, 32 * 1024);
    const over = refusal(() => write('A', { value: `${'ü'.repeat(32 * 1024)}x` }));
    assert.match(over, /value has 65537 bytes; at most 65536 \(64 KiB\)/);
    for (const value of [undefined, null, 5, ['hunter2'], { hunter2: 1 }]) {
      const message = refusal(() => write('A', { value }));
      assert.match(message, /^value (?:must be|is required)/);
      assert.doesNotMatch(message, /hunter2/);
    }
  });

  test('allowed_domains: names the entry that is wrong', () => {
    const message = refusal(() => write('A', { value: '', allowed_domains: ['a.b', 'https://a.b'] }));
    assert.match(message, /^allowed_domains\[1\] must be .*, but was "https:\/\/a\.b"$/);
    assert.match(
      refusal(() => write('A', { value: '', allowed_domains: 'a.b' })),
      /allowed_domains must be/,
    );
    assert.match(
      refusal(() => write('A', { value: '', allowed_domains: Array(65).fill('a.b') })),
      /at most 64 items/,
    );
  });

  test('POST /vms 400: a variable that env and secrets both name', () => {
    assert.match(
      refusal(() => resolveSandboxCreate({ image: 'a', env: { TOKEN: 'x' }, secrets: ['OTHER', 'TOKEN'] })),
      /env\.TOKEN cannot be set, because secrets attaches/,
    );
    const both = resolveSandboxCreate({ image: 'a', env: { A: 'x' }, secrets: ['TOKEN', 'TOKEN'] });
    assert.deepEqual(both.secrets, ['TOKEN']);
  });
});

describe('the host of a registry', () => {
  test('is lower case; Docker Hub has one name', () => {
    for (const hub of ['docker.io', 'registry-1.docker.io', 'registry.hub.docker.com', 'Index.Docker.IO'])
      assert.equal(checkRegistryHost(hub), 'index.docker.io');
    assert.equal(checkRegistryHost('LOCALHOST:5000'), 'localhost:5000');
    assert.equal(checkRegistryHost('[::1]:5000'), '[::1]:5000');
    assert.equal(checkRegistryHost('GHCR.io'), 'ghcr.io');
  });

  for (const bad of [
    '',
    'https://ghcr.io',
    'ghcr.io/',
    'ghcr.io/org',
    'a b',
    'a:',
    'a:0',
    'a:65536',
    'a:x',
    ':5000',
    'a..b',
    'user@a',
    'a?b',
    '-a',
  ])
    test(`refuses ${JSON.stringify(bad)}`, () => {
      assert.match(
        refusal(() => checkRegistryHost(bad)),
        /registry host/,
      );
    });

  test('whatever is taken is bare, and is the host of the references that begin with it', () => {
    const host = fc
      .tuple(
        fc.oneof(domain, label, fc.ipV4()),
        fc.option(fc.integer({ min: 1, max: 65_535 }), { nil: null }),
      )
      .map(([name, port]) => (port === null ? name : `${name}:${port}`));
    fc.assert(
      fc.property(host, (text) => {
        const kept = checkRegistryHost(text);
        assert.equal(checkRegistryHost(kept), kept);
        assert.equal(checkRegistryHost(text.toUpperCase()), kept);
        // By the convention a first part without dot and colon is no host, unless it is localhost.
        if (/[.:]/.test(text) || text === 'localhost')
          assert.equal(parseImageReference(`${text}/org/app:1`).host, kept);
      }),
    );
    fc.assert(
      fc.property(fc.oneof(fc.string({ unit: 'binary' }), fc.webUrl()), (text) => {
        try {
          assert.match(checkRegistryHost(text), /^(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?$/);
        } catch (error) {
          assert.ok(error instanceof ApiError && error.status === 400);
        }
      }),
    );
  });
});

describe('a registry credential', () => {
  const write = (host: string, body: object = {}) =>
    resolveRegistryWrite(host, validate(RegistryWrite, 'body', { username: 'u', password: 'p', ...body }));

  for (const [kind, host] of [
    ['basic', 'anything.example:8443'],
    ['ghcr', 'GHCR.io'],
    ['gcr', 'gcr.io'],
    ['gcr', 'eu.gcr.io'],
    ['gcr', 'europe-west1-docker.pkg.dev'],
    ['ecr', '123456789012.dkr.ecr.eu-central-1.amazonaws.com'],
  ] as const)
    test(`kind ${kind} is for ${host}`, () => {
      assert.equal(write(host, { kind }).kind, kind);
    });

  for (const [kind, host] of [
    ['ghcr', 'docker.io'],
    ['ghcr', 'ghcr.io.evil.example'],
    ['ghcr', 'ghcr.io:443'],
    ['gcr', 'notgcr.io'],
    ['gcr', 'gcr.io.evil.example'],
    ['gcr', 'docker.pkg.dev'],
    ['gcr', 'a.b-docker.pkg.dev'],
    ['ecr', 'dkr.ecr.eu-central-1.amazonaws.com'],
    ['ecr', '1.dkr.ecr.amazonaws.com'],
    ['ecr', '1.dkr.ecr.eu-central-1.amazonaws.com.evil.example'],
  ] as const)
    test(`PUT /registries/:host 400: kind ${kind} is not for ${host}`, () => {
      assert.match(
        refusal(() => write(host, { kind })),
        new RegExp(`^kind "${kind}" is for`),
      );
    });

  test('PUT /registries/:host 400: unknown kind, empty or invalid username, empty or large password', () => {
    assert.equal(write('a.b').kind, 'basic');
    assert.match(
      refusal(() => write('a.b', { kind: 'acr' })),
      /kind must be one of "basic", "ghcr", "gcr", "ecr"/,
    );
    assert.match(
      refusal(() => write('a.b', { username: '' })),
      /username must be/,
    );
    assert.match(
      refusal(() => write('a.b', { username: 'a:b' })),
      /username must have no colon/,
    );
    assert.match(
      refusal(() => write('a.b', { password: '' })),
      /password must be a non-empty string/,
    );
    assert.equal(write('a.b', { password: 'x'.repeat(65_536) }).password.length, 65_536);
    const over = refusal(() => write('a.b', { password: 'x'.repeat(65_537) }));
    assert.match(over, /password has 65537 bytes; at most 65536/);
    assert.doesNotMatch(over, /xxx/);
  });
});
