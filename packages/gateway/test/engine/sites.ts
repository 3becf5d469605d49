/** Browsers send the cookie of a preview with requests of pages of other sandboxes, too: they are all of one site. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { WebSocket } from 'ws';
import { DOMAIN, token } from '../support/preview-world.ts';
import { call, ports, route, withToken, world } from '../support/engine-world.ts';

const cookie = { cookie: `rlp_preview=${token}` };
const other = `http://8080-other.${DOMAIN}`;
const from = (site: string, mode: string, dest: string) => ({
  'sec-fetch-site': site,
  'sec-fetch-mode': mode,
  'sec-fetch-dest': dest,
});

/** What a browser sends for actions of a page. */
const attacks: [what: string, method: string, headers: Record<string, string>][] = [
  ['fetch', 'GET', { ...from('same-site', 'cors', 'empty'), origin: other }],
  ['fetch of an opaque answer', 'GET', from('same-site', 'no-cors', 'empty')],
  ['an image', 'GET', from('same-site', 'no-cors', 'image')],
  ['a form', 'POST', { ...from('same-site', 'navigate', 'document'), origin: other }],
  ['a form in an old browser', 'POST', { origin: other }],
  ['a frame', 'GET', from('same-site', 'navigate', 'iframe')],
];

test('pages of other sandboxes cannot use the cookie of a preview: fetch, forms, images, frames, WebSockets', async () => {
  const host = world.hostOf('private-site');
  // A route of this credential leads past the gateway.
  await route(host, { headers: cookie });
  world.seen = [];
  for (const [name, port] of Object.entries(ports)) {
    for (const [what, method, headers] of attacks) {
      const answer = await call(port, host, { method, headers: { ...headers, ...cookie } });
      assert.equal(answer.status, 401, `${what} through the ${name}`);
      const withHeader = await call(port, host, { method, headers: { ...headers, ...cookie, ...withToken } });
      assert.equal(withHeader.status, 200, `${what} with the token in a header through the ${name}`);
      world.seen = [];
    }
    const socket = new WebSocket(`ws://127.0.0.1:${port}/`, { headers: { host, ...cookie, origin: other } });
    const [refusal] = (await once(socket, 'error')) as [Error];
    assert.match(refusal.message, /401/, name);
    assert.equal(world.seen.length, 0);
  }
});

test("the host's own pages, other ports of the sandbox and links of any page use the cookie", async () => {
  const host = world.hostOf('private-own');
  await route(host, { headers: cookie });
  const own = { ...from('same-origin', 'cors', 'empty'), origin: `http://${host}` };
  await route(host, { method: 'POST', headers: { ...own, ...cookie } });
  for (const [name, port] of Object.entries(ports)) {
    for (const [method, headers] of [
      ['POST', own],
      ['GET', from('same-origin', 'no-cors', 'image')],
      ['GET', from('cross-site', 'navigate', 'document')],
      ['POST', { ...from('same-site', 'cors', 'empty'), origin: `http://3000-private-own.${DOMAIN}` }],
    ] as const)
      assert.equal(
        (await call(port, host, { method, headers: { ...headers, ...cookie } })).status,
        200,
        name,
      );
    const socket = new WebSocket(`ws://127.0.0.1:${port}/`, {
      headers: { host, ...cookie, origin: `http://${host}` },
    });
    await once(socket, 'open');
    socket.terminate();
  }
});

test('a browser without a credential gets a page, a program an error, a preflight leave without reaching the guest', async () => {
  const host = world.hostOf('private-page');
  for (const port of Object.values(ports)) {
    const page = await call(port, host, { headers: { accept: 'text/html,*/*' } });
    assert.equal(page.status, 401);
    assert.match(String(page.headers['content-type']), /text\/html/);
    assert.match(page.body.toString(), /This preview is private/);
    const error = await call(port, host, { headers: { accept: '*/*' } });
    const { request_id: requestId, ...refusal } = JSON.parse(error.body.toString()) as Record<
      string,
      unknown
    >;
    assert.deepEqual(
      [error.status, refusal],
      [401, { error: 'this preview is private', code: 'unauthorized', retryable: false }],
    );
    assert.equal(requestId, error.headers['x-request-id']);
    const preflight = await call(port, host, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://app.example',
        'access-control-request-method': 'PUT',
        'access-control-request-headers': 'x-service-preview-token',
      },
    });
    assert.deepEqual(
      [
        preflight.status,
        ...['origin', 'methods', 'headers', 'credentials'].map(
          (name) => preflight.headers[`access-control-allow-${name}`],
        ),
      ],
      [204, '*', 'PUT', 'x-service-preview-token', undefined],
    );
    // A front end at another port of the sandbox, whose requests may use the cookie.
    const origin = `http://${host.replace(/^\d+/, '3000')}`;
    const own = await call(port, host, {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': 'PUT',
        'access-control-request-headers': 'content-type',
      },
    });
    assert.deepEqual(
      [
        own.status,
        ...['origin', 'methods', 'headers', 'credentials'].map(
          (name) => own.headers[`access-control-allow-${name}`],
        ),
      ],
      [204, origin, 'PUT', 'content-type', 'true'],
    );
  }
  assert.equal(world.seen.length, 0);
  const asked = { origin: 'https://app.example', 'access-control-request-method': 'PUT' };
  const shown = await call(ports.gateway, host, { method: 'OPTIONS', headers: { ...asked, ...withToken } });
  assert.equal(shown.headers['x-guest'], 'yes');
  const open = await call(ports.gateway, world.hostOf('public-page'), { method: 'OPTIONS', headers: asked });
  assert.equal(open.headers['x-guest'], 'yes', 'the guest of a public preview answers itself');
});
