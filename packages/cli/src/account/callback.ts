/**
 * The address on this machine that an issuer sends the browser back to (RFC 8252 §7.3): open on loopback for one
 * sign-in only.
 */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { CliError, interruptedError } from '../cli-error.ts';

const CALLBACK_PATH = '/callback';

export interface Callback extends AsyncDisposable {
  /** Sent to the issuer. */
  uri: string;
  /** The URL of the browser's redirect. Throws when it does not arrive in time. */
  returned: (state: string, options: { deadlineMs: number; signal: AbortSignal }) => Promise<URL>;
}

export async function openCallback(): Promise<Callback> {
  const server = createServer({ requestTimeout: 10_000, maxHeaderSize: 16_384 });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', resolve);
  });
  const uri = `http://127.0.0.1:${(server.address() as AddressInfo).port}${CALLBACK_PATH}`;
  return {
    uri,
    returned: (state, options) => visit(server, uri, state, options),
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function visit(
  server: Server,
  uri: string,
  state: string,
  { deadlineMs, signal }: { deadlineMs: number; signal: AbortSignal },
): Promise<URL> {
  const { promise, resolve } = Promise.withResolvers<URL>();
  server.on('request', (request, response) => {
    const url = new URL(request.url ?? '/', uri);
    response.setHeader('content-type', 'text/plain; charset=utf-8').setHeader('connection', 'close');
    response
      .setHeader('content-security-policy', "default-src 'none'")
      .setHeader('cache-control', 'no-store');
    // Any page can send a browser here; only the issuer knows the state.
    if (
      request.method !== 'GET' ||
      url.pathname !== CALLBACK_PATH ||
      url.searchParams.get('state') !== state
    ) {
      response.writeHead(404).end('This is not the sign-in that rlp waits for.\n');
      return;
    }
    const refused = url.searchParams.has('error');
    response.end(
      refused ? 'The sign-in was refused: rlp tells why.\n' : 'Signed in. You may close this page.\n',
      () => resolve(url),
    );
  });
  const ended = new AbortController();
  try {
    const late = sleep(deadlineMs, 'late' as const, { signal: AbortSignal.any([signal, ended.signal]) });
    const first = await Promise.race([promise, late]).catch(() => {
      throw interruptedError();
    });
    if (first === 'late')
      throw new CliError(`the browser did not return within ${Math.round(deadlineMs / 60_000)} min`);
    return first;
  } finally {
    ended.abort();
  }
}
