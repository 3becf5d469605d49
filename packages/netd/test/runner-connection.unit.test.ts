import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { after, before, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { Type } from 'typebox';
import { RunnerConnection } from '../src/runner-connection.ts';

const Message = Type.Object({ text: Type.String() });
const received: string[] = [];
const answers: PromiseWithResolvers<{ said: string }>[] = [];
const connection = new RunnerConnection<typeof Message, { said: string }>({
  received: Message,
  receivedMaxBytes: 1_000,
  hello: () => ({ said: 'hello' }),
  onMessage({ text }) {
    received.push(text);
    if (text !== 'ask') return;
    const answer = Promise.withResolvers<{ said: string }>();
    answers.push(answer);
    connection.answer(answer.promise);
  },
});
let server: Server;

before(async () => {
  server = createServer({ allowHalfOpen: true }, (socket) => connection.accept(socket));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
});
after(() => {
  connection.close();
  server.close();
});

async function open(): Promise<{ socket: Socket; said: () => string[] }> {
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  let text = '';
  socket.setEncoding('utf8').on('data', (chunk) => (text += String(chunk)));
  await once(socket, 'data');
  return { socket, said: () => text.trim().split('\n') };
}

const say = (socket: Socket, text: string): boolean => socket.write(`${JSON.stringify({ text })}\n`);

test('a new runner ends the one before, which gets no answer of the new one', async () => {
  const first = await open();
  say(first.socket, 'ask');
  await eventually('it is asked', () => answers.length === 1);
  const ended = once(first.socket, 'close');
  const second = await open();
  await ended;
  answers[0]?.resolve({ said: 'late' });
  say(second.socket, 'ask');
  await eventually('it is asked again', () => answers.length === 2);
  answers[1]?.resolve({ said: 'in time' });
  await eventually('the answer', () => second.said().length === 2);
  assert.deepEqual(second.said(), ['{"said":"hello"}', '{"said":"in time"}']);
  assert.deepEqual(first.said(), ['{"said":"hello"}']);
  assert.equal(connection.aloneMs, 0);
});

test('a message that is not in the protocol, and work that failed, end the connection; a runner that ends is gone', async () => {
  const wrong = await open();
  wrong.socket.write('{"other":1}\n');
  await once(wrong.socket, 'close');
  const failed = await open();
  say(failed.socket, 'ask');
  await eventually('it is asked', () => answers.length === 3);
  answers[2]?.reject(new Error('the work failed'));
  await once(failed.socket, 'close');
  const ending = await open();
  // Only its own side: the server's socket is half-open.
  ending.socket.end();
  await eventually('it is seen to be alone', () => connection.aloneMs > 0);
  assert.equal(connection.isConnected, false);
});
