/** What the ingress of functions passes on of a gateway's answer. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { test } from 'node:test';
import { Agent } from 'undici';
import { passThrough } from '../src/functions/ingress/pass-through.ts';

/** Answers of `upstream`, passed on. */
async function through(upstream: (socket: net.Socket) => void) {
  await using stack = new AsyncDisposableStack();
  const behind = net.createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () => upstream(socket));
  });
  behind.listen(0, '127.0.0.1');
  await once(behind, 'listening');
  stack.defer(() => void behind.close());
  const dispatcher = new Agent();
  stack.defer(() => dispatcher.destroy());
  const { port } = behind.address() as AddressInfo;
  const front = http.createServer((request, response) => {
    passThrough(request, response, {
      dispatcher,
      origin: `http://127.0.0.1:${port}`,
      path: '/',
      headers: {},
      onBegin: () => undefined,
    }).catch((error: { status: number }) => response.writeHead(error.status).end());
  });
  front.listen(0, '127.0.0.1');
  await once(front, 'listening');
  stack.defer(() => {
    front.close();
    front.closeAllConnections();
  });
  const answer = await fetch(`http://127.0.0.1:${(front.address() as AddressInfo).port}/`);
  return { status: answer.status, headers: answer.headers, text: await answer.text().catch(() => undefined) };
}

test('an answer may have no, one or two cookies and repeated Connection headers', async () => {
  for (const cookies of [[], ['a=1'], ['a=1', 'b=2']]) {
    const { status, headers, text } = await through((socket) => {
      const lines = [
        'HTTP/1.1 200 OK',
        'content-length: 2',
        'connection: close',
        'connection: x-hop',
        'x-hop: 1',
        ...cookies.map((cookie) => `set-cookie: ${cookie}`),
      ];
      socket.end(`${lines.join('\r\n')}\r\n\r\nok`);
    });
    assert.deepEqual([status, text, headers.get('x-hop')], [200, 'ok', null]);
    assert.deepEqual(headers.getSetCookie(), cookies);
  }
});

test('a gateway that closes the connection is a 502 before its answer, and ends the answer after its begin', async () => {
  assert.equal((await through((socket) => socket.destroy())).status, 502);
  const half = await through((socket) => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf'));
  assert.deepEqual([half.status, half.text], [200, undefined]);
});
