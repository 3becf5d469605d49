import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { cleanName, quote, readEmail } from '@releap/contract';
import { readBounded } from '@releap/contract/read-bounded';
import type { Logger } from 'pino';
import { createAccounts } from './accounts.ts';
import { readOrMakeKeys } from './keys.ts';
import { messagePage, PAGE_HEADERS, signInPage, type SignInForm } from './pages.ts';
import { createProvider, isLoopbackOrigin, SIGN_IN_PATH } from './provider.ts';

export interface IdentityOptions {
  /** Folder of the keys. */
  home: string;
  /** Port on 127.0.0.1; 0 takes any free one. */
  port: number;
  /** Audience of access tokens. */
  audience: string;
  log: Logger;
}

export interface IdentityServer {
  readonly issuer: string;
  close(): Promise<void>;
}

const HOST = '127.0.0.1';
const FORM_BYTES = 16 * 1024;
const REQUEST_MS = 15_000;

/**
 * The identity provider of a server without a configured one. It asks for no password, so it listens on loopback only and
 * answers only under its own host names, which prevents DNS rebinding.
 */
export async function startIdentity({ home, port, audience, log }: IdentityOptions): Promise<IdentityServer> {
  const keys = await readOrMakeKeys(home);
  const accounts = createAccounts();
  let handle: (request: IncomingMessage, response: ServerResponse) => Promise<void> = async () => undefined;
  const server = createServer((request, response) => {
    handle(request, response).catch((error: unknown) => {
      log.error({ err: error }, 'the identity provider failed at a request');
      if (response.headersSent) response.destroy();
      else
        sendPage(
          response,
          500,
          messagePage('This did not work', 'Something broke inside the identity provider.'),
        );
    });
  });
  server.requestTimeout = REQUEST_MS;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host: HOST, port, exclusive: true }, resolve);
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the identity provider has no port');
  const issuer = `http://${HOST}:${address.port}`;
  const names = new Set([`${HOST}:${address.port}`, `localhost:${address.port}`]);
  const provider = createProvider({
    issuer,
    audience,
    keys,
    accounts,
    onError: (error) => log.error({ err: error }, 'the identity provider failed'),
  });
  const answer = provider.callback();

  async function signIn(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let details: Awaited<ReturnType<typeof provider.interactionDetails>>;
    try {
      // Needs the cookie that this browser got with the redirect.
      details = await provider.interactionDetails(request, response);
    } catch {
      const text =
        'This sign-in has ended, or was begun in another browser. Begin again in your terminal or dashboard.';
      return sendPage(response, 400, messagePage('This sign-in is over', text));
    }
    const client = await provider.Client.find(String(details.params['client_id']));
    const form: SignInForm = {
      action: `${SIGN_IN_PATH}/${details.uid}`,
      client: client?.clientName ?? 'an unknown program',
    };
    if (request.method === 'GET') return sendPage(response, 200, signInPage(form));
    if (request.method !== 'POST') {
      return sendPage(response, 405, messagePage('This did not work', 'Use the form.'));
    }
    const tooLarge = (): Error => new Error(`a form of more than ${FORM_BYTES} bytes was sent`);
    const sent = await readBounded(request, FORM_BYTES, tooLarge);
    const fields = new URLSearchParams(sent.toString('utf8'));
    const typed = { email: fields.get('email') ?? '', name: fields.get('name') ?? '' };
    const email = readEmail(typed.email);
    if (email === null) {
      const problem = `${quote(typed.email)} is not an e-mail address.`;
      return sendPage(response, 400, signInPage({ ...form, ...typed, problem }));
    }
    let name: string;
    try {
      name = typed.name.trim() === '' ? (email.split('@')[0] ?? email) : cleanName(typed.name);
    } catch (error) {
      return sendPage(response, 400, signInPage({ ...form, ...typed, problem: (error as Error).message }));
    }
    const accountId = accounts.signIn({ email, name });
    await provider.interactionFinished(request, response, { login: { accountId, remember: false } });
  }

  handle = async (request, response) => {
    const problem = refusal(request, names);
    if (problem !== undefined) return sendPage(response, 403, messagePage('Refused', problem));
    const path = request.url?.split('?', 1)[0] ?? '';
    if (path.startsWith(`${SIGN_IN_PATH}/`)) await signIn(request, response);
    else await answer(request, response);
  };
  log.info({ issuer }, 'the development identity provider is listening');
  return {
    issuer,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** Why this request is refused; undefined for a valid one. */
function refusal(request: IncomingMessage, names: ReadonlySet<string>): string | undefined {
  if (!names.has(request.headers.host ?? '')) {
    return `This server answers as ${[...names].join(' or ')} only.`;
  }
  const { origin } = request.headers;
  const path = request.url?.split('?', 1)[0] ?? '';
  if (request.method === 'GET' || request.method === 'HEAD' || origin === undefined) return undefined;
  // Pages of this machine may request tokens; sign-in forms must come from this server.
  const isForm = path.startsWith(SIGN_IN_PATH) || path.startsWith('/device') || path.startsWith('/session');
  const allowed = isForm ? names.has(origin.replace(/^http:\/\//, '')) : isLoopbackOrigin(origin);
  return allowed ? undefined : 'This request was sent by a page that may not send it.';
}

function sendPage(response: ServerResponse, status: number, html: string): void {
  response.writeHead(status, PAGE_HEADERS).end(html);
}
