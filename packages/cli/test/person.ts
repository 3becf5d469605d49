/** Somebody with a configuration folder of their own, as whom tests call `rlp`. */
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Credentials } from '../src/account/credentials.ts';
import { CLIENT, startIssuer, type TestIssuer, type TestUser } from './issuer.ts';
import { type Outcome, rlp, rlpHere, type RlpOptions } from './rlp.ts';
import { startService, type TestService } from './service.ts';
import { manage, type TestManagement } from './service-management.ts';

export interface Person extends AsyncDisposable {
  config: string;
  /** In a process of its own when `started` is given. */
  rlp: (args: readonly string[], options?: RlpOptions) => Promise<Outcome>;
  credentials: () => Promise<Credentials>;
  remember: (credentials: object | string, mode?: number) => Promise<void>;
  fileMode: () => Promise<number>;
}

export async function person(): Promise<Person> {
  const config = await mkdtemp(join(tmpdir(), 'rlp-config-'));
  const path = join(config, 'releap/credentials.json');
  return {
    config,
    rlp: (args, options = {}) =>
      (options.started ? rlp : rlpHere)(null, args, {
        ...options,
        env: { XDG_CONFIG_HOME: config, ...options.env },
      }),
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

export interface World extends AsyncDisposable {
  issuer: TestIssuer;
  service: TestService;
  management: TestManagement;
  ada: Person;
}

/** A service with an issuer, and Ada. */
export async function world(): Promise<World> {
  const [issuer, service, ada] = [await startIssuer(), await startService(), await person()];
  return {
    issuer,
    service,
    management: manage(service, issuer),
    ada,
    [Symbol.asyncDispose]: async () => {
      for (const one of [ada, service, issuer]) await one[Symbol.asyncDispose]();
    },
  };
}

/** What a sign-in of that user leaves behind. */
export function signedIn(
  { issuer, service }: Pick<World, 'issuer' | 'service'>,
  user: TestUser,
  more: object = {},
): Credentials {
  const token = `${user.name}.token.${user.id}`;
  issuer.tokens.set(token, user);
  return {
    current: service.url,
    services: {
      [service.url]: {
        issuer: issuer.url,
        client_id: CLIENT,
        token,
        expires_at: new Date(Date.now() + 3_600_000).toISOString(),
        user: { id: user.id, email: user.email },
        ...more,
      },
    },
  };
}

/** The same, with Ada signed in. */
export async function signedInWorld(): Promise<World> {
  const made = await world();
  await made.ada.remember(signedIn(made, made.issuer.user));
  return made;
}
