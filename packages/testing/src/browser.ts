/** The parts of a browser that a sign-in needs: cookies, redirects within one site, forms. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';

export interface Page {
  status: number;
  url: string;
  text: string;
  headers: Headers;
}

export class Browser {
  readonly #cookies = new Map<string, { value: string; path: string }>();

  async open(url: string, init: RequestInit = {}): Promise<Page> {
    let next = url;
    let method = init;
    for (let hop = 0; hop < 10; hop++) {
      const { pathname } = new URL(next);
      const cookies = [...this.#cookies].filter(([, { path }]) => pathname.startsWith(path));
      const response = await fetch(next, {
        ...method,
        redirect: 'manual',
        headers: {
          cookie: cookies.map(([name, { value }]) => `${name.split(' ')[0]}=${value}`).join('; '),
          ...(method.headers as Record<string, string> | undefined),
        },
      });
      for (const line of response.headers.getSetCookie()) this.#keep(line);
      const text = await response.text();
      const location = response.headers.get('location');
      if (location === null || response.status < 300 || response.status > 399) {
        return { status: response.status, url: next, text, headers: response.headers };
      }
      const target = new URL(location, next).href;
      // Back to the program that asked: what a browser would open there.
      if (new URL(target).origin !== new URL(url).origin) {
        return { status: response.status, url: target, text, headers: response.headers };
      }
      next = target;
      method = {};
    }
    throw new Error(`too many redirects from ${url}`);
  }

  /** Sends the one form of a page, its hidden fields included. */
  async submit(page: Page, fields: Record<string, string> = {}, init: RequestInit = {}): Promise<Page> {
    const action = /<form[^>]* action="([^"]+)"/.exec(page.text)?.[1];
    assert.ok(action !== undefined, page.text);
    const hidden = [...page.text.matchAll(/<input type="hidden" name="([^"]+)" value="([^"]*)"/g)];
    const all = { ...Object.fromEntries(hidden.map((match) => [match[1] ?? '', match[2] ?? ''])), ...fields };
    return this.open(new URL(action, page.url).href, {
      method: 'POST',
      body: new URLSearchParams(all),
      ...init,
      headers: { origin: originOf(page), ...(init.headers as Record<string, string> | undefined) },
    });
  }

  #keep(line: string): void {
    const [pair = '', ...attributes] = line.split(';').map((part) => part.trim());
    const name = pair.slice(0, pair.indexOf('='));
    const value = pair.slice(pair.indexOf('=') + 1);
    const path = attributes.find((one) => /^path=/i.test(one))?.slice(5) ?? '/';
    const key = `${name} ${path}`;
    if (value === '' || attributes.some((one) => /expires=Thu, 01 Jan 1970/i.test(one)))
      this.#cookies.delete(key);
    else this.#cookies.set(key, { value, path });
  }
}

/** The Origin header that a browser sends with a form (Fetch standard, "append a request Origin header"). */
function originOf({ url, headers }: Page): string {
  return headers.get('referrer-policy') === 'no-referrer' ? 'null' : new URL(url).origin;
}

export interface Tokens {
  access_token: string;
  refresh_token: string;
  id_token: string;
  expires_in: number;
  token_type: string;
}

export async function post<T>(
  url: string,
  fields: Record<string, string>,
): Promise<{ status: number; body: T }> {
  const response = await fetch(url, { method: 'POST', body: new URLSearchParams(fields) });
  return { status: response.status, body: (await response.json()) as T };
}

export async function discover(issuer: string): Promise<Record<string, string>> {
  const response = await fetch(`${issuer}/.well-known/openid-configuration`);
  return (await response.json()) as Record<string, string>;
}

/** The steps of a terminal and its user. */
export async function signInByDevice(
  issuer: string,
  person: { email: string; name: string },
  clientId = 'releap-cli',
): Promise<Tokens> {
  const places = await discover(issuer);
  const begun = await post<Record<string, string>>(places['device_authorization_endpoint'] ?? '', {
    client_id: clientId,
    scope: 'openid profile email offline_access',
  });
  assert.equal(begun.status, 200, JSON.stringify(begun.body));
  const poll = {
    grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
    device_code: begun.body['device_code'] ?? '',
    client_id: clientId,
  };
  const early = await post<{ error: string }>(places['token_endpoint'] ?? '', poll);
  assert.equal(early.body.error, 'authorization_pending');

  const browser = new Browser();
  let page = await browser.open(begun.body['verification_uri'] ?? '');
  page = await browser.submit(page, { user_code: begun.body['user_code'] ?? '' });
  assert.match(page.text, new RegExp(begun.body['user_code'] ?? 'no code'));
  page = await browser.submit(page);
  assert.match(page.text, /Sign in to Releap/);
  page = await browser.submit(page, person);
  assert.equal(page.status, 200, page.text);
  assert.match(page.text, /You are signed in/);

  const done = await post<Tokens>(places['token_endpoint'] ?? '', poll);
  assert.equal(done.status, 200, JSON.stringify(done.body));
  return done.body;
}

/** The steps of a dashboard, and of a command line with a browser beside it. */
export async function signInByCode(
  issuer: string,
  person: { email: string; name: string },
  { clientId = 'releap-cli', redirect = 'http://127.0.0.1:45678/callback', browser = new Browser() } = {},
): Promise<Tokens> {
  const places = await discover(issuer);
  const verifier = randomBytes(32).toString('base64url');
  const state = randomBytes(8).toString('hex');
  const query = new URLSearchParams({
    client_id: clientId,
    response_type: 'code',
    redirect_uri: redirect,
    scope: 'openid profile email offline_access',
    state,
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
  });
  let page = await browser.open(`${places['authorization_endpoint']}?${query.toString()}`);
  assert.match(page.text, /Sign in to Releap/, page.text);
  page = await browser.submit(page, person);
  const back = new URL(page.url);
  assert.equal(`${back.origin}${back.pathname}`, redirect, page.text);
  assert.equal(back.searchParams.get('state'), state);
  const done = await post<Tokens>(places['token_endpoint'] ?? '', {
    grant_type: 'authorization_code',
    client_id: clientId,
    code: back.searchParams.get('code') ?? '',
    redirect_uri: redirect,
    code_verifier: verifier,
  });
  assert.equal(done.status, 200, JSON.stringify(done.body));
  return done.body;
}
