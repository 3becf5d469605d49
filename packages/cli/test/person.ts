/** People with a configuration folder of their own, as whom tests call `rlp`, and a service that they sign in to. */
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { issuerOf } from '@releap/server/identity';
import { signInByDevice, type Tokens } from '@releap/testing/browser';
import { quiet } from '@releap/testing/logging';
import { startWorld, type World } from '@releap/testing/world';
import type { Credentials } from '../src/account/credentials.ts';
import { type Outcome, rlp, rlpHere, type HereOptions, type ProcessOptions, type RlpOptions } from './rlp.ts';

const CLIENT = 'releap-cli';
const AUDIENCE = 'releap';

export interface Person extends AsyncDisposable {
  config: string;
  rlp: (args: readonly string[], options?: HereOptions) => Promise<Outcome>;
  /** The same in a process of its own. */
  rlpProcess: (args: readonly string[], options?: ProcessOptions) => Promise<Outcome>;
  credentials: () => Promise<Credentials>;
  remember: (credentials: object | string, mode?: number) => Promise<void>;
  fileMode: () => Promise<number>;
}

export async function person(): Promise<Person> {
  const config = await mkdtemp(join(tmpdir(), 'rlp-config-'));
  const path = join(config, 'releap/credentials.json');
  const withConfig = <T extends RlpOptions>(options?: T) => ({
    ...options,
    env: { XDG_CONFIG_HOME: config, ...options?.env },
  });
  return {
    config,
    rlp: (args, options) => rlpHere(null, args, withConfig(options)),
    rlpProcess: (args, options) => rlp(null, args, withConfig(options)),
    credentials: async () => JSON.parse(await readFile(path, 'utf8')) as Credentials,
    remember: async (credentials, mode = 0o600) => {
      await mkdir(join(config, 'releap'), { recursive: true });
      const text = typeof credentials === 'string' ? credentials : JSON.stringify(credentials);
      await rm(path, { force: true });
      await writeFile(path, text, { mode });
    },
    fileMode: async () => (await stat(path)).mode & 0o777,
    [Symbol.asyncDispose]: () => rm(config, { recursive: true, force: true }),
  };
}

export interface User {
  name: string;
  email: string;
}

/** A signed-in user, with what the issuer and the service know of them. */
export interface SignedIn extends Person {
  user: User & { id: string };
  tokens: Tokens;
  /** A call of the management plane. */
  call(method: string, path: string, body?: object): Promise<{ status: number; body: any }>; // oxlint-disable-line typescript/no-explicit-any -- tests read arbitrary bodies
}

/** A service with the development identity provider, for all tests of a file: each takes users of its own. */
export interface Accounts extends AsyncDisposable {
  world: World;
  url: string;
  issuer: string;
  /** Of a user that no other test uses. */
  user(name: string): User;
  signedIn(name: string): Promise<SignedIn>;
  /** What `rlp login` remembers. */
  sessionOf(who: { tokens: Tokens; user: { id: string; email: string } }, more?: object): Credentials;
}

export async function startAccounts(options: Parameters<typeof startWorld>[0] = {}): Promise<Accounts> {
  await using stack = new AsyncDisposableStack();
  const home = await mkdtemp(join(tmpdir(), 'rlp-identity-'));
  stack.defer(() => rm(home, { recursive: true, force: true }));
  const config = { home, oidc: { audience: AUDIENCE, clientId: CLIENT, trustEmail: false } };
  const { identity, oidc } = await issuerOf(config, true, quiet);
  if (identity === undefined || oidc === undefined) throw new Error('there is no identity provider');
  stack.defer(() => identity.close());
  const world = stack.use(await startWorld({ ...options, oidc }));
  const owned = stack.move();
  let users = 0;
  const accounts: Accounts = {
    world,
    url: world.url,
    issuer: identity.issuer,
    user: (name) => ({ name, email: `${name}-${++users}@example.com` }),
    sessionOf: ({ tokens, user }, more = {}) => ({
      current: world.url,
      services: {
        [world.url]: {
          issuer: identity.issuer,
          client_id: CLIENT,
          token: tokens.access_token,
          expires_at: new Date(Date.now() + tokens.expires_in * 1000).toISOString(),
          refresh_token: tokens.refresh_token,
          user: { id: user.id, email: user.email },
          ...more,
        },
      },
    }),
    async signedIn(name) {
      const user = accounts.user(name);
      const tokens = await signInByDevice(identity.issuer, user);
      const call: SignedIn['call'] = async (method, path, body) => {
        const answer = await fetch(world.url + path, {
          method,
          headers: {
            authorization: `Bearer ${tokens.access_token}`,
            ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          },
          ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        });
        return { status: answer.status, body: await answer.json() };
      };
      const me = (await call('GET', '/me')).body as { id: string };
      const who = { ...(await person()), tokens, user: { ...user, id: me.id }, call };
      await who.remember(accounts.sessionOf(who));
      return who;
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
  return accounts;
}
