/** WebSockets: placeholders are replaced in the head of the request; afterwards bytes pass as they are. */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { prepareHead, reasonOf, scrubbedHeaders, UpstreamFailure, type ExchangeContext } from './exchange.ts';

/** @throws RefusedRequest, UpstreamFailure before anything was answered */
export async function upgrade(
  request: IncomingMessage,
  client: Duplex,
  clientHead: Buffer,
  context: ExchangeContext,
): Promise<void> {
  const { method = 'GET', url: target = '/', rawHeaders } = request;
  const { connection, secrets, upstream } = context;
  const { path, headers } = prepareHead({ method, target, rawHeaders }, context);
  // Both pipelines listen, beside Node itself.
  client.setMaxListeners(0);
  client.on('error', () => client.destroy());
  const sent = upstream.request(connection, {
    method,
    path,
    headers: [...headers, 'Connection', 'Upgrade', 'Upgrade', 'websocket'],
    fresh: true,
  });
  client.once('close', () => sent.destroy());
  const { promise, resolve, reject } = Promise.withResolvers<[IncomingMessage, Duplex | undefined, Buffer]>();
  sent.once('upgrade', (answer, socket, head) => resolve([answer, socket, head]));
  sent.once('response', (answer) => resolve([answer, undefined, Buffer.alloc(0)]));
  sent.on('error', (error) => reject(new UpstreamFailure(reasonOf(error))));
  sent.end();
  const [answer, server, serverHead] = await promise;
  const { headers: answered } = scrubbedHeaders(answer.rawHeaders, secrets, connection.host);
  const fields =
    server === undefined ? ['Connection', 'close'] : ['Connection', 'Upgrade', 'Upgrade', 'websocket'];
  client.write(headText(answer, [...answered, ...fields]), 'latin1');
  if (server === undefined) return await pipeline(answer, client);
  server.on('error', () => server.destroy());
  server.unshift(serverHead);
  client.unshift(clientHead);
  // An error on one connection closes both and is not reported.
  await Promise.allSettled([pipeline(client, server), pipeline(server, client)]);
}

function headText({ statusCode = 502, statusMessage = '' }: IncomingMessage, fields: string[]): string {
  let text = `HTTP/1.1 ${statusCode} ${statusMessage}\r\n`;
  for (let at = 0; at + 1 < fields.length; at += 2) text += `${fields[at]}: ${fields[at + 1]}\r\n`;
  return `${text}\r\n`;
}
