import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import type { EndpointRecord, PreviewLink } from '@releap/contract';
import { sharedText } from '@releap/testing/callers';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { DEADLINE_MS, startChromium } from './support/chromium.ts';

/** Open to the host's addresses; on loopback only; not listened on. */
const OPEN = 8080;
const LOOPBACK = 8081;
const CLOSED = 8082;

/** A page that says what a script in it sees, and a program that prints what the server was sent. */
const SERVE = `mkdir -p /www/cgi-bin && cd /www
echo '<p id=seen></p><script>seen.textContent = "cookie(" + document.cookie + ") " + location.href</script>' > index.html
printf '#!/bin/sh\\nprintf "content-type: text/plain\\\\r\\\\n\\\\r\\\\n"; env; cat' > cgi-bin/env && chmod +x cgi-bin/env
httpd -p ${OPEN} -h /www && httpd -p 127.0.0.1:${LOOPBACK} -h /www`;

/** Requests that HAProxy of a service has sent to sandboxes itself. */
async function routed(home: string): Promise<number> {
  const socket = connect(join(home, 'run', 'previews', 'admin.sock'));
  socket.write('show stat guests 4 -1\n');
  const [head = '', ...servers] = (await text(socket)).trim().split('\n');
  const [name, total] = ['svname', 'stot'].map((column) => head.replace('# ', '').split(',').indexOf(column));
  return servers
    .map((line) => line.split(','))
    .filter((fields) => fields[name ?? 0]?.startsWith('lane'))
    .reduce((sum, fields) => sum + Number(fields[total ?? 0]), 0);
}

describe('previews of a sandbox, as curl and a browser see them', () => {
  let service: Service;
  let vm: { id: string; token: string };
  let url: string;
  before(async () => {
    service = await sharedService();
    vm = await service.create({ persistent: true, cpu: 1, mem_mib: 256, scratch_mib: 64 });
    await service.exec(vm.id, SERVE);
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
  });

  const endpoints = <T>(method: string, path = '', body?: object) =>
    service.call<T>(method, `/vms/${vm.id}/endpoints${path}`, body);
  const expose = async (port: number, isPublic?: boolean): Promise<EndpointRecord> => {
    const { status, body } = await endpoints<EndpointRecord>('POST', '', { port, public: isPublic });
    assert.equal(status, 200, JSON.stringify(body));
    return body;
  };
  const linkTo = async (port: number): Promise<PreviewLink> =>
    (await service.call<PreviewLink>('POST', `/vms/${vm.id}/preview-links`, { port })).body;
  /** curl resolves all names below `localhost` itself. */
  async function curl(target: string, ...options: string[]): Promise<{ status: number; text: string }> {
    const { stdout } = await promisify(execFile)(
      'curl',
      ['-s', '-m', '60', '-w', '\n%{http_code}', ...options, target],
      { timeout: 90_000 },
    );
    const end = stdout.lastIndexOf('\n');
    return { status: Number(stdout.slice(end + 1)), text: stdout.slice(0, end) };
  }
  const withToken = (token: string): string[] => ['-H', `x-service-preview-token: ${token}`];

  test('"a port nobody exposed is unreachable"; "Private is the default"; a duplicate gets 409', async () => {
    const { body: none } = await endpoints<{ endpoints: EndpointRecord[] }>('GET');
    assert.deepEqual(none.endpoints, []);
    const record = await expose(OPEN);
    ({ url } = record);
    assert.equal(record.public, false);
    assert.deepEqual([record.vm_id, record.port], [vm.id, OPEN]);
    const place = new URL(url);
    assert.equal(place.hostname, `${OPEN}-${vm.id}.localhost`);
    assert.equal((await endpoints('POST', '', { port: OPEN })).status, 409);

    const other = url.replace(`${OPEN}-`, `${CLOSED}-`);
    const stranger = url.replace(vm.id, `${vm.id.slice(0, -3)}aaa`);
    const [unexposed, unknown] = [await curl(other), await curl(stranger)];
    assert.deepEqual([unexposed.status, unknown.status], [404, 404]);
    const neutral = (answer: { text: string }): string =>
      sharedText(answer).replaceAll(/\d{4}|[a-z2-7]{26}/g, '');
    assert.equal(neutral(unexposed), neutral(unknown), 'a stranger cannot tell them apart');
    const told = await curl(other, ...withToken(vm.token));
    assert.equal(told.status, 404);
    assert.match(told.text, /not exposed/);
  });

  test('a private endpoint accepts "the preview token", "a project API key or the sandbox\'s access token", and the guest sees none of them', async () => {
    const { token, url: linked } = await linkTo(OPEN);
    assert.equal(linked, url);
    assert.equal((await linkTo(OPEN)).token, token, '"returns the same URL and token on repeat calls"');
    assert.equal((await curl(url)).status, 401);
    assert.equal((await curl(url, ...withToken(`${token.slice(0, -4)}0000`))).status, 401);
    const key = service.bootstrap.api_key;
    for (const options of [
      withToken(token),
      withToken(key),
      withToken(vm.token),
      ['-H', `authorization: Bearer ${key}`],
      ['-H', `authorization: Bearer ${vm.token}`],
      ['-b', `rlp_preview=${token}; own=1`],
    ]) {
      const { status, text } = await curl(`${url}cgi-bin/env?x=1`, '-d', 'body of the request', ...options);
      assert.equal(status, 200, text);
      assert.match(text, /body of the request$/);
      assert.match(text, /QUERY_STRING=x=1/);
      for (const secret of [token, key, vm.token]) assert.ok(!text.includes(secret), text);
    }
  });

  test('"flips visibility (effective within about 1 s)", and the removal of an endpoint ends it', async () => {
    const { body } = await endpoints<{ endpoints: EndpointRecord[] }>('GET');
    const [endpoint] = body.endpoints;
    assert.ok(endpoint);
    for (const [isPublic, status] of [
      [true, 200],
      [false, 401],
    ] as const) {
      assert.equal((await endpoints('PATCH', `/${endpoint.id}`, { public: isPublic })).status, 200);
      await eventually(`an answer ${status}`, async () => (await curl(url)).status === status);
    }
    const { token } = await linkTo(OPEN);
    assert.equal((await endpoints('DELETE', `/${endpoint.id}`)).status, 200);
    await eventually('no preview', async () => (await curl(url, ...withToken(token))).status === 404);
    await expose(OPEN);
    assert.equal((await curl(url, ...withToken(token))).status, 401, 'a token of a removed endpoint');
  });

  test('a server that listens on 127.0.0.1 alone is reached; one that does not listen is told apart', async () => {
    const { url: inside, token } = await linkTo(LOOPBACK);
    assert.match((await curl(inside, ...withToken(token))).text, /id=seen/);
    const { url: nothing } = await linkTo(CLOSED);
    const answer = await curl(nothing, ...withToken(vm.token));
    assert.equal(answer.status, 502);
    assert.match(answer.text, /nothing listens on port/);
  });

  test('a browser opens a private preview by its link, and keeps a cookie that scripts do not see', async () => {
    const { signed_url: signed, url: clean } = await linkTo(OPEN);
    const chromium = await startChromium();
    try {
      const context = await chromium.newContext();
      context.setDefaultTimeout(DEADLINE_MS);
      const page = await context.newPage();
      await page.goto(signed);
      assert.equal(await page.textContent('#seen'), `cookie() ${clean}`);
      assert.equal((await page.reload())?.status(), 200);
      const [cookie] = await context.cookies();
      assert.ok(cookie);
      assert.deepEqual(
        [cookie.domain, cookie.httpOnly, cookie.sameSite, cookie.path],
        [new URL(clean).hostname, true, 'Lax', '/'],
      );
      const { url: other } = await linkTo(LOOPBACK);
      assert.equal((await page.goto(other))?.status(), 401, 'the cookie is for one host');
    } finally {
      await chromium.close();
    }
  });

  test('further requests go from the engine straight to the sandbox; what is open ends with its pause', async () => {
    const options = withToken(vm.token);
    await eventually('a route', async () => {
      const earlier = await routed(service.home);
      assert.equal((await curl(url, ...options)).status, 200);
      return (await routed(service.home)) > earlier;
    });
    await service.exec(
      vm.id,
      `printf '#!/bin/sh\\nprintf "content-type: text/plain\\\\r\\\\n\\\\r\\\\n"; echo begun; exec sleep 3600' > /www/cgi-bin/wait
       chmod +x /www/cgi-bin/wait`,
    );
    // A route is withdrawn while the gateway is too slow to confirm it.
    const answer = await eventually('a request that is routed, and stays open', async () => {
      const before = await routed(service.home);
      const request = get(`${url.replace(/\/\/[^/:]+/, '//127.0.0.1')}cgi-bin/wait`, {
        headers: { host: new URL(url).host, 'x-service-preview-token': vm.token },
        agent: false,
      });
      const [begun] = (await once(request, 'response')) as [IncomingMessage];
      assert.equal(begun.statusCode, 200);
      if ((await routed(service.home)) > before) return begun;
      request.on('error', () => undefined).destroy();
      return undefined;
    });
    const ended = new Promise((resolve) => answer.once('close', resolve));
    answer.on('error', () => undefined).resume();
    assert.equal((await service.call('POST', `/vms/${vm.id}/pause`)).status, 200);
    await service.waitFor(vm.id, 'paused');
    await ended;
    await eventually('a refusal', async () => (await curl(url, ...options)).status === 409);
    assert.equal((await service.call('POST', `/vms/${vm.id}/resume`)).status, 200);
    await service.waitFor(vm.id, 'running');
    await eventually('an answer', async () => (await curl(url, ...options)).status === 200);
  });

  test('a paused sandbox is told apart from a stopped one, and answers again when it runs', async () => {
    for (const [operation, status, back] of [
      ['pause', 'paused', 'resume'],
      ['stop', 'stopped', 'start'],
    ] as const) {
      assert.equal((await service.call('POST', `/vms/${vm.id}/${operation}`)).status, 200);
      await service.waitFor(vm.id, status);
      // Gateways hear of it after those who wait for it at the API.
      const answer = await eventually('a refusal', async () => {
        const one = await curl(url, ...withToken(vm.token));
        return one.status === 409 && one;
      });
      assert.match(answer.text, new RegExp(`is ${status}`));
      assert.equal((await curl(url)).status, 401, 'without a credential its status is not told');
      if (back === 'start') return;
      assert.equal((await service.call('POST', `/vms/${vm.id}/${back}`)).status, 200);
      await service.waitFor(vm.id, 'running');
      await eventually('an answer', async () => (await curl(url, ...withToken(vm.token))).status === 200);
    }
  });
});
