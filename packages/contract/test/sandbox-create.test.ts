/** One test a rule of the create table; those of resources are in sandbox-create-resources.test.ts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import { ApiError, SandboxCreateRequest, validate, resolveSandboxCreate } from '../src/index.ts';
import { create, refused } from './support/sandbox-create.ts';

describe('name', () => {
  test('is left to be made up when absent, null or blank', () => {
    for (const name of [undefined, null, '', '  ']) assert.equal(create({ name }).name, null);
  });
  test('is kept, with its letters of any script', () =>
    assert.equal(create({ name: ' Büro 東京 ' }).name, 'Büro 東京'));
  test('is refused when it is no string, too long or has control characters', () => {
    refused({ name: 5 }, 'name must be a string', '5');
    refused({ name: 'x'.repeat(257) }, 'at most 256');
    refused({ name: 'a\nb' }, 'control characters');
    refused({ name: 'a\0b' }, 'NUL');
    refused({ name: 'a\ud800b' }, 'surrogate');
  });
});

describe('image', () => {
  test('is required', () => {
    refused({ image: undefined }, 'image is required');
    refused({ image: null }, 'image is required');
    refused({ image: '' }, 'image must be');
  });
  test('with a slash or a colon is a registry reference, in the words it was given', () => {
    for (const ref of ['node:20', 'org/app', 'localhost:5000/app', 'ghcr.io/a/b:c@sha256:' + 'a'.repeat(64)])
      assert.deepEqual(create({ image: ref }).image, { type: 'registry', ref });
  });
  test('without either is the name of an image', () => {
    assert.deepEqual(create({ image: 'busybox' }).image, { type: 'named', name: 'busybox' });
  });
  test('may be an object with a type', () => {
    assert.deepEqual(create({ image: { type: 'registry', ref: 'busybox' } }).image, {
      type: 'registry',
      ref: 'busybox',
    });
    assert.deepEqual(create({ image: { type: 'named', name: 'a.b' } }).image, { type: 'named', name: 'a.b' });
    assert.deepEqual(create({ image: { type: 'snapshot', name: 's' } }).image, {
      type: 'snapshot',
      name: 's',
    });
    const dockerfile = { type: 'dockerfile', dockerfile: 'FROM a' };
    assert.deepEqual(create({ image: dockerfile }).image, dockerfile);
    assert.deepEqual(create({ image: { ...dockerfile, docker: false } }).image, dockerfile);
    assert.deepEqual(create({ image: { ...dockerfile, docker: true } }).image, {
      ...dockerfile,
      docker: true,
    });
  });
  test('of another type, or without what its type needs, is refused by name', () => {
    refused({ image: 7 }, 'image must be', '7');
    refused({ image: [] }, 'image must be');
    refused({ image: {} }, 'image must be');
    refused({ image: { type: 'zip' } }, 'image must be', 'zip');
    refused({ image: { type: 'dockerfile', dockerfile: 'FROM a', docker: 'maybe' } }, 'docker');
    refused({ image: { type: 'registry' } }, 'image.ref is required');
    refused({ image: { type: 'registry', ref: 5 } }, 'image.ref must be a string', '5');
    refused({ image: { type: 'named', name: '' } }, 'image.name');
    refused({ image: { type: 'named', name: 'a/b' } }, 'image.name', 'a/b');
  });
  test('that is no registry reference is refused with the part that is wrong', () => {
    refused({ image: 'https://docker.io/x' }, 'scheme');
    refused({ image: 'a/../b' }, '..');
    refused({ image: 'app:' }, 'tag');
    refused({ image: 'a/b@sha256:12' }, 'digest');
    refused({ image: 'two words' }, 'image must be', 'two words');
  });
});

describe('ports', () => {
  test('are none when absent', () => assert.deepEqual(create({}).ports, []));
  test('are tcp unless they say udp', () => {
    const ports = [{ vm_port: 80 }, { vm_port: 53, proto: 'udp' }, { vm_port: 53, proto: null }];
    assert.deepEqual(create({ ports }).ports, [
      { vm_port: 80, proto: 'tcp' },
      { vm_port: 53, proto: 'udp' },
      { vm_port: 53, proto: 'tcp' },
    ]);
  });
  test('the same one twice is one', () => {
    assert.equal(create({ ports: [{ vm_port: 80 }, { vm_port: 80, proto: 'tcp' }] }).ports.length, 1);
  });
  test('must be 1 to 65535, tcp or udp, in objects, in an array', () => {
    for (const vm_port of [0, 65_536, -1, 1.5, '80']) refused({ ports: [{ vm_port }] }, 'ports[0].vm_port');
    refused({ ports: [{}] }, 'ports[0].vm_port is required');
    refused({ ports: [{ vm_port: 1 }, { vm_port: 2, proto: 'sctp' }] }, 'ports[1].proto', 'sctp');
    refused({ ports: [80] }, 'ports[0] must be an object', '80');
    refused({ ports: { vm_port: 80 } }, 'ports must be an array');
    refused({ ports: Array.from({ length: 65 }, (_, i) => ({ vm_port: i + 1 })) }, 'at most 64');
  });
});

describe('volumes and object_store_mounts', () => {
  const volume = (mount_path: unknown, more = {}) => ({ volumes: [{ volume: 'v', mount_path, ...more }] });
  test('mount_path must be absolute and must not climb', () => {
    refused(volume('data'), 'absolute');
    refused(volume('/a/../b'), '..');
    refused(volume('/a\nb'), 'control');
    refused(volume(5), 'volumes[0].mount_path must be a string');
  });
  test('reserved mount paths are refused, and what lies below them', () => {
    for (const path of [
      '/',
      '//',
      '/proc',
      '/sys/',
      '/dev',
      '/overlay',
      '/mnt/scratch',
      '/./proc',
      '/dev/shm',
      '/mnt//scratch/x',
    ])
      refused(volume(path), 'reserved');
  });
  test('a path that only begins like a reserved one is allowed', () => {
    for (const path of ['/process', '/mnt', '/mnt/scratch2', '/data/proc'])
      assert.equal(create(volume(path)).volumes.length, 1);
  });
  test('two mounts with one path are refused, across both kinds', () => {
    const volumes = [{ volume: 'v', mount_path: '/data' }];
    refused({ volumes: [...volumes, { volume: 'w', mount_path: '/data/' }] }, '/data', 'twice');
    refused({ volumes, object_store_mounts: [{ object_store: 's', mount_path: '//data' }] }, 'twice');
  });
  test('at most 8 of each', () => {
    const many = (key: string) => Array.from({ length: 9 }, (_, i) => ({ [key]: 'v', mount_path: `/m${i}` }));
    refused({ volumes: many('volume') }, 'volumes', 'at most 8', '9 items');
    refused({ object_store_mounts: many('object_store') }, 'object_store_mounts', 'at most 8');
    assert.equal(create({ volumes: many('volume').slice(1) }).volumes.length, 8);
  });
  test('subpath stays inside the volume', () => {
    assert.equal(create(volume('/d', { subpath: '/a//b/' })).volumes[0]?.subpath, 'a/b');
    assert.equal(create(volume('/d', { subpath: '/./' })).volumes[0]?.subpath, null);
    refused(volume('/d', { subpath: 'a/../../b' }), 'subpath', '..');
    refused(volume('/d', { subpath: 'a\nb' }), 'subpath', 'control');
    refused(volume('/d', { subpath: 'é'.repeat(128) }), 'subpath', '255 bytes');
    refused(volume('/d', { subpath: 'a/'.repeat(600) }), 'subpath', '1024');
  });
  test('one mount inside another is refused, across both kinds', () => {
    const volumes = [{ volume: 'v', mount_path: '/data' }];
    refused({ volumes, object_store_mounts: [{ object_store: 's', mount_path: '/data/s' }] }, 'is below');
    refused({ volumes: [...volumes, { volume: 'w', mount_path: '/data/a/b' }] }, '/data/a/b', 'is below');
    assert.equal(create({ volumes: [...volumes, { volume: 'v', mount_path: '/data2' }] }).volumes.length, 2);
  });
});

describe('secrets', () => {
  test('the same name twice is one', () =>
    assert.deepEqual(create({ secrets: ['A', 'A', 'B'] }).secrets, ['A', 'B']));
  test('names that no secret can have are refused', () => {
    refused({ secrets: ['no-such'] }, 'secrets', 'no-such');
    refused({ secrets: [5] }, 'secrets[0]');
    refused({ secrets: 'A' }, 'secrets must be an array');
  });
});

describe('env', () => {
  test('is taken verbatim', () => {
    const env = { A: '', _b9: ' $HOME "\n', lower: 'é' };
    assert.deepEqual(create({ env }).env, env);
  });
  test('names match [A-Za-z_][A-Za-z0-9_]*', () => {
    for (const name of ['1A', 'A-B', '', 'A B', 'Ä', 'A=B'])
      refused({ env: { [name]: 'x' } }, 'env name', 'A-Za-z_');
  });
  test('values have at most 64 KiB of UTF-8', () => {
    assert.equal(create({ env: { A: 'x'.repeat(65_536) } }).env['A']?.length, 65_536);
    refused({ env: { A: 'x'.repeat(65_537) } }, 'env.A', '65537', '65536');
    refused({ env: { A: 'é'.repeat(32_769) } }, 'env.A');
  });
  test('all of it has at most 1 MiB', () => {
    const env = Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`V${i}`, 'x'.repeat(65_536)]));
    refused({ env }, 'in all');
  });
  test('a value is never shown', () => {
    for (const value of ['hunter2\0', 5, ['hunter2'], { hunter2: 1 }, 'hunter2'.repeat(10_000)]) {
      assert.throws(
        () => create({ env: { PASSWORD: value } }),
        (error: unknown) =>
          error instanceof ApiError && !/hunter2|\b5\b/.test(error.message) && /PASSWORD/.test(error.message),
      );
    }
  });
  test('__proto__ and constructor are names like any other', () => {
    const env = create(
      JSON.parse('{"env":{"__proto__":"a","constructor":"b"}}') as Record<string, unknown>,
    ).env;
    assert.deepEqual(Object.entries(env), [
      ['__proto__', 'a'],
      ['constructor', 'b'],
    ]);
    assert.equal(Object.getPrototypeOf(env), Object.prototype);
  });
  test('must be an object of strings', () => {
    refused({ env: ['A=b'] }, 'env must be an object');
    refused({ env: 'A=b' }, 'env must be an object');
    refused({ env: { A: null } }, 'env.A');
  });
});

describe('persistent and spot', () => {
  test('are false when absent', () => {
    assert.equal(create({}).persistent, false);
    assert.equal(create({}).spot, false);
  });
  test('must be true or false', () => {
    refused({ persistent: 'yes' }, 'persistent must be true or false', 'yes');
    refused({ spot: 1 }, 'spot must be true or false');
  });
});

describe('egress_policy', () => {
  const allow = (...entries: unknown[]) => ({ egress_policy: { enabled: true, allow: entries } });
  test('is none when absent', () => assert.equal(create({}).egress_policy, null));
  test('allows addresses, networks, domains and wildcards, each in one spelling', () => {
    const policy = create(
      allow('1.2.3.4', '10.1.2.3/8', '0.0.0.0/0', 'API.Example.com.', '*.Example.com', '1.2.3.4'),
    ).egress_policy;
    assert.deepEqual(policy?.allow, [
      '1.2.3.4',
      '10.0.0.0/8',
      '0.0.0.0/0',
      'api.example.com',
      '*.example.com',
    ]);
  });
  test('refuses every other entry, by its place', () => {
    const bad = [
      '',
      '*',
      '*.',
      '1.2.3',
      '1.2.3.4/33',
      '1.2.3.4/',
      '1.2.3.4/8/9',
      '01.2.3.4',
      '::1',
      'http://a.b',
      'a..b',
      '-a.b',
      'a b',
      'a.b:80',
      'a.*.b',
      'x.123',
      `${'a'.repeat(64)}.b`,
    ];
    for (const entry of bad) refused(allow('1.1.1.1', entry), 'egress_policy.allow[1]');
  });
  test('needs enabled to be said', () =>
    refused({ egress_policy: { allow: [] } }, 'egress_policy.enabled is required'));
  test('without allow allows nothing', () => {
    assert.deepEqual(create({ egress_policy: { enabled: true } }).egress_policy, {
      enabled: true,
      allow: [],
    });
  });
});

describe('placement', () => {
  test('region is the default when absent or empty', () => {
    for (const region of [undefined, null, '']) assert.equal(create({ region }).region, null);
    assert.equal(create({ region: 'eu-1' }).region, 'eu-1');
  });
  test('cpu_arch must be amd64 or arm64', () => {
    assert.equal(create({ cpu_arch: 'arm64' }).cpu_arch, 'arm64');
    refused({ cpu_arch: 'riscv' }, 'cpu_arch', 'amd64', 'arm64', 'riscv');
  });
});

test('unknown fields are ignored, at every depth', () => {
  const sandbox = create({
    nonsense: 1,
    __proto__: { mode: 'dedicated' },
    ports: [{ vm_port: 80, colour: 'red' }],
  });
  assert.equal(sandbox.mode, 'burstable');
  assert.deepEqual(sandbox.ports, [{ vm_port: 80, proto: 'tcp' }]);
  assert.ok(!('nonsense' in sandbox));
});

test('__proto__ in a body changes nothing', () => {
  const body = JSON.parse(
    '{"image":"busybox","__proto__":{"cpu":8,"polluted":true},"constructor":{"prototype":{}}}',
  ) as unknown;
  assert.equal(resolveSandboxCreate(validate(SandboxCreateRequest, 'body', body)).cpu, 0.125);
  assert.equal(({} as { polluted?: boolean }).polluted, undefined);
});

test('null for every optional field means absent', () => {
  const optional = Object.keys(SandboxCreateRequest.properties).filter((key) => key !== 'image');
  assert.deepEqual(create(Object.fromEntries(optional.map((key) => [key, null]))), create({}));
});

test('no JSON value makes anything but a 400', () => {
  const fields = Object.keys(SandboxCreateRequest.properties);
  fc.assert(
    fc.property(fc.dictionary(fc.constantFrom(...fields), fc.jsonValue()), (body) => {
      try {
        create(body);
      } catch (error) {
        assert.ok(error instanceof ApiError && error.status === 400, String(error));
      }
    }),
    { numRuns: propertyRuns(2000) },
  );
  fc.assert(
    fc.property(fc.jsonValue(), (body) => {
      try {
        validate(SandboxCreateRequest, 'body', body);
      } catch (error) {
        assert.ok(error instanceof ApiError && error.status === 400, String(error));
      }
    }),
  );
});
