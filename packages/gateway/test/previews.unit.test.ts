import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newToken } from '@releap/contract';
import { findCredential, withoutOwnCookies } from '../src/targets/preview-credential.ts';
import { cookieUse } from '../src/targets/preview-site.ts';
import { parsePreviewHost } from '../src/targets/preview-host.ts';

const token = newToken('preview');

test('a host below the preview domain names a port of a sandbox; others are not previews', () => {
  const parse = (host: string | undefined) => parsePreviewHost(host, 'preview.test');
  const at = { port: 8080, sandbox: 'eu-west-1-abc' };
  assert.deepEqual(parse('8080-eu-west-1-abc.preview.test'), {
    ...at,
    authority: '8080-eu-west-1-abc.preview.test',
  });
  assert.deepEqual(parse('8080-EU-WEST-1-abc.Preview.Test.:7071'), {
    ...at,
    authority: '8080-eu-west-1-abc.preview.test:7071',
  });
  for (const host of [
    undefined,
    '',
    'preview.test',
    '127.0.0.1:7071',
    '8080-abc.preview.test.evil.test',
    '8080-abcpreview.test',
    '8080-abc.preview.test/x',
    'a@8080-abc.preview.test',
    '8080-abc.preview.test:7071:1',
    '8080-abc.preview.test:x',
    '8080-a\u0131.preview.test',
  ])
    assert.equal(parse(host), undefined, host);
  for (const label of [
    '',
    'x',
    '8080',
    '8080-',
    '-abc',
    '0-abc',
    '08080-abc',
    '65536-abc',
    '80.80-abc',
    'a.8080-abc',
  ])
    assert.equal(parse(`${label}.preview.test`), null, label);
});

test('a credential is taken from the header, the bearer token, the URL or the cookie, in this order', () => {
  const key = newToken('apiKey');
  const access = newToken('sandbox');
  const other = newToken('preview');
  const find = (url: string, headers: Record<string, string> = {}) => findCredential(url, headers, false);
  const bearer = { authorization: `Bearer ${key}` };
  const cookie = { cookie: `a=b; rlp_preview=${token}` };
  assert.equal(find('/', { 'x-service-preview-token': access, ...bearer }).token, access);
  const compatible = { 'x-daytona-preview-token': token };
  assert.equal(find('/', { ...compatible, ...bearer }).token, token);
  assert.equal(find('/', { 'x-service-preview-token': access, ...compatible }).token, access);
  assert.equal(find(`/?rlp_token=${other}`, { ...bearer, ...cookie }).token, key);
  assert.deepEqual(find(`/a?x=1&rlp_token=${other}&y=%20`, cookie), {
    token: other,
    isInUrl: true,
    url: '/a?x=1&y=%20',
  });
  assert.deepEqual(find(`/?rlp%5Ftoken=${other}`), { token: other, isInUrl: true, url: '/' });
  assert.deepEqual(find(`/a?rlp_token=${other}`, bearer), { token: key, isInUrl: false, url: '/a' });
  assert.equal(find('/', cookie).token, token);
  for (const authorization of ['Bearer guest-token', 'Basic eDp5', `Bearer ${newToken('function')}`])
    assert.equal(find('/', { authorization }).token, null, authorization);
  assert.equal(
    findCredential('/', cookie, true).token,
    null,
    'over TLS only the cookie with the prefix counts',
  );
  assert.equal(findCredential('/', { cookie: `__Host-rlp_preview=${token}` }, true).token, token);
  for (const value of [key, access, 'x', ''])
    assert.throws(() => find(`/?rlp_token=${value}`), { status: 401 }, value);
});

test('the cookies of the gateway are removed, and only they', () => {
  assert.equal(
    withoutOwnCookies(`a=1; rlp_preview=x; b=rlp_preview=2;__Host-rlp_preview=y; __Host-rlp_preview_frame=z`),
    'a=1; b=rlp_preview=2',
  );
  assert.equal(withoutOwnCookies('rlp_preview=x'), undefined);
  assert.equal(withoutOwnCookies('xrlp_preview=x'), 'xrlp_preview=x');
});

test('the cookie of a preview counts for its own pages, other ports of the sandbox and navigations that change nothing', () => {
  const host = parsePreviewHost('8080-abc.preview.test', 'preview.test');
  assert.ok(host);
  const use = (headers: Record<string, string>, method = 'GET', isTls = true): string => {
    const { page, frame } = cookieUse(method, headers, { host, domain: 'preview.test', isTls });
    return page && frame ? 'both' : page ? 'page' : frame ? 'frame' : 'none';
  };
  const from = (site: string, mode = 'cors', dest = 'empty') => ({
    'sec-fetch-site': site,
    'sec-fetch-mode': mode,
    'sec-fetch-dest': dest,
  });
  const [own, sibling] = ['https://8080-abc.preview.test', 'https://3000-abc.preview.test'];
  const cases: [expected: string, headers: Record<string, string>, method?: string][] = [
    ['both', {}],
    ['both', {}, 'POST'],
    ['both', from('same-origin')],
    ['both', from('none', 'navigate', 'document')],
    ['both', { ...from('same-origin'), origin: own }, 'POST'],
    ['both', { ...from('same-site'), origin: sibling }, 'DELETE'],
    ['both', { ...from('same-site', 'websocket'), origin: sibling }],
    ['page', from('cross-site', 'navigate', 'document')],
    ['page', from('same-site', 'navigate', 'document'), 'HEAD'],
    ['frame', from('cross-site', 'navigate', 'iframe')],
    // Pages of other sandboxes are of the same site.
    ['none', from('same-site')],
    ['none', from('same-site', 'no-cors', 'image')],
    ['none', from('same-site', 'no-cors', 'script')],
    ['none', from('cross-site', 'navigate', 'object')],
    ['none', { ...from('same-site'), origin: 'https://8080-xyz.preview.test' }],
    ['none', { ...from('same-site', 'websocket'), origin: 'https://8080-xyz.preview.test' }],
    ['none', { origin: 'https://8080-xyz.preview.test' }, 'POST'],
    ['none', { ...from('same-site', 'navigate', 'document'), origin: 'https://1-xyz.preview.test' }, 'POST'],
    ['none', { ...from('cross-site', 'navigate', 'document'), origin: 'null' }, 'POST'],
    ['none', from('cross-site', 'navigate', 'document'), 'POST'],
    ['none', { origin: 'http://8080-abc.preview.test' }],
    ['none', { origin: 'https://8080-abc.preview.test.evil.test' }],
    ['none', { origin: 'https://8080-abcd.preview.test' }],
    ['none', { origin: `${own}, https://evil.test` }],
  ];
  for (const [expected, headers, method] of cases)
    assert.equal(use(headers, method), expected, JSON.stringify([method, headers]));
  assert.equal(use({ origin: 'http://8080-abc.preview.test' }, 'POST', false), 'both');
});

test('the cookie of a frame counts over TLS, where it does', () => {
  const headers = { cookie: `__Host-rlp_preview_frame=${token}` };
  const find = (isTls: boolean, use?: { page: boolean; frame: boolean }) =>
    findCredential('/', headers, isTls, use).token;
  assert.equal(find(true), token);
  assert.equal(find(false), null);
  assert.equal(find(true, { page: true, frame: false }), null);
});
