import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { AddressPolicy, isPublicAddress } from '../src/image/registry/address-policy.ts';
import { parseChallenge } from '../src/image/registry/challenge.ts';

describe('addresses that pulls may connect to', () => {
  it('are those of the public internet', () => {
    for (const address of ['8.8.8.8', '2606:4700::1111', '::ffff:8.8.8.8', '172.32.0.1']) {
      assert.equal(isPublicAddress(address), true, address);
    }
    for (const address of [
      '127.0.0.1',
      '10.1.2.3',
      '172.16.0.1',
      '192.168.1.1',
      '169.254.169.254',
      '100.64.0.1',
      '168.63.129.16',
      '0.0.0.0',
      '224.0.0.1',
      '255.255.255.255',
      '::',
      '::1',
      '::ffff:10.0.0.1',
      '::ffff:127.0.0.1',
      'fe80::1',
      'fd00::1',
      'ff02::1',
      '64:ff9b::a00:1',
      '2002:a00:1::',
      '2001::1',
      'localhost',
      '',
    ]) {
      assert.equal(isPublicAddress(address), false, address);
    }
  });

  it('are refused as literals in every notation that a URL can have', () => {
    const policy = new AddressPolicy([]);
    for (const url of [
      'https://10.0.0.1/',
      'https://2130706433/',
      'https://0x7f.1/',
      'https://[::1]/',
      'https://[::ffff:a00:1]/',
    ]) {
      assert.throws(() => policy.checkLiteral(new URL(url)), { code: 'private-address' }, url);
    }
    policy.checkLiteral(new URL('https://1.1.1.1/'));
    policy.checkLiteral(new URL('https://registry.example/'));
  });

  it('include the networks and hosts that the operator lists', () => {
    const policy = new AddressPolicy(['10.1.0.0/16', 'registry.lan', 'other.lan:5000']);
    policy.checkLiteral(new URL('https://10.1.2.3/'));
    assert.throws(() => policy.checkLiteral(new URL('https://10.2.0.1/')), { code: 'private-address' });
    assert.equal(policy.isTrusted(new URL('https://registry.lan:444/'), 'any.example'), true);
    assert.equal(policy.isTrusted(new URL('https://other.lan:5000/'), 'any.example'), true);
    assert.equal(policy.isTrusted(new URL('https://other.lan/'), 'any.example'), false);
  });

  it('include this machine only for the registry of the reference itself', () => {
    const policy = new AddressPolicy(['loopback']);
    assert.equal(policy.isTrusted(new URL('http://localhost:5000/v2/'), 'localhost:5000'), true);
    assert.equal(policy.isTrusted(new URL('http://localhost:5001/v2/'), 'localhost:5000'), false);
    assert.equal(policy.isTrusted(new URL('http://127.0.0.1:5000/v2/'), 'localhost:5000'), false);
    assert.equal(policy.isTrusted(new URL('http://localhost:5000/'), 'registry.example'), false);
    assert.equal(policy.isTrusted(new URL('http://localhost/'), 'localhost'), true);
    const none = new AddressPolicy([]);
    assert.equal(none.isTrusted(new URL('http://localhost:5000/v2/'), 'localhost:5000'), false);
  });

  it('are judged after a name was resolved', async () => {
    const resolve = (policy: AddressPolicy): Promise<unknown> =>
      new Promise((resolved, rejected) => {
        policy.lookup('localhost', { all: true }, (error, addresses) =>
          error ? rejected(error) : resolved(addresses),
        );
      });
    await assert.rejects(resolve(new AddressPolicy([])), {
      code: 'private-address',
      message:
        /^localhost, which is .*, is in a private or reserved network; .*RELEAP_REGISTRY_PRIVATE_HOSTS/,
    });
  });
});

describe('the challenge of a registry', () => {
  it('is read from what registries send, and a token is preferred', () => {
    const bearer = parseChallenge(
      'Bearer realm="https://auth.example/token",service="a \\"b\\"",scope="repository:x:pull"',
    );
    assert.deepEqual(bearer && [bearer.scheme, ...bearer.parameters], [
      'bearer',
      ['realm', 'https://auth.example/token'],
      ['service', 'a "b"'],
      ['scope', 'repository:x:pull'],
    ]);
    assert.equal(parseChallenge(['Basic realm=x', 'Bearer realm="https://a"'])?.scheme, 'bearer');
    assert.equal(parseChallenge('basic realm="x"')?.scheme, 'basic');
    assert.equal(parseChallenge('Negotiate'), undefined);
    assert.equal(parseChallenge(undefined), undefined);
  });
});
