import type { IncomingMessage } from 'node:http';
import { WebSocket } from 'ws';
import { CliError } from '../cli-error.ts';
import { networkError } from '../client/failure.ts';
import { EXIT } from '../exit-codes.ts';
import { printable } from '../terminal.ts';
import type { Toolbox } from './toolbox.ts';

const HANDSHAKE_MS = 30_000;

/** The service has no web socket at that address: an older one, or none behind a proxy. */
export class NoStreamError extends CliError {}

/**
 * A web socket of a sandbox's toolbox.
 * @param path below the toolbox of the sandbox
 * @param prepare called before it is open, for a server that sends at once
 */
export function openSocket(
  toolbox: Toolbox,
  path: string,
  prepare?: (socket: WebSocket) => void,
): Promise<WebSocket> {
  const url = new URL(`${toolbox.url}${path}`);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  const { promise, resolve, reject } = Promise.withResolvers<WebSocket>();
  const socket = new WebSocket(url, {
    headers: { authorization: `Bearer ${toolbox.apiKey}` },
    handshakeTimeout: HANDSHAKE_MS,
    perMessageDeflate: false,
    maxPayload: 1024 * 1024,
  });
  prepare?.(socket);
  socket.once('open', () => resolve(socket));
  socket.once('unexpected-response', (_request, answer) => {
    void refusedUpgrade(answer).then(reject);
  });
  // Never removed: a later 'error' without a listener would end the process.
  socket.on('error', (error) => reject(networkError(error, new URL(toolbox.url), toolbox.signal)));
  return promise;
}

async function refusedUpgrade(answer: IncomingMessage): Promise<CliError> {
  const status = answer.statusCode ?? 0;
  let text = '';
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    text += chunk.toString('utf8');
    if (text.length > 64 * 1024) break;
  }
  let sentence = `the service answered ${status}`;
  let ours = false;
  try {
    const body = JSON.parse(text) as { error?: unknown };
    if (typeof body.error === 'string') {
      sentence = printable(body.error);
      ours = true;
    }
  } catch {
    // Some proxy's page.
  }
  const options = { status, exitCode: status === 401 ? EXIT.unavailable : EXIT.failed };
  const noSocket =
    status === 200 || status === 405 || status === 426 || status === 501 || (status === 404 && !ours);
  return noSocket ? new NoStreamError(sentence, options) : new CliError(sentence, options);
}
