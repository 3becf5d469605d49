/** How pulls ask their registries, for whom, and which layers they need not fetch. */
import { createHmac, randomBytes } from 'node:crypto';
import type { ImageReference, RootSource } from '@releap/contract';
import type { RegistryAccess } from './image-builder.ts';
import type { LayerScope } from './layer-store.ts';
import type { PullOwner } from './pull-queue.ts';
import type { AddressPolicy } from './registry/address-policy.ts';
import type { RegistryCredential } from './registry/registry-client.ts';
import type { RegistryLogin } from './registry/registry-login.ts';

export type PullCredential = NonNullable<Extract<RootSource, { type: 'registry' }>['credential']>;

export interface PullAccess {
  owner: PullOwner;
  login: (signal: AbortSignal) => Promise<RegistryCredential | undefined>;
  /** @param share given back when the registry is not needed any more */
  of: (signal: AbortSignal, share: Disposable) => Promise<RegistryAccess>;
}

/** @param projectId whose pull it is; absent: the service's own */
export function pullAccess(
  { logins, policy }: { logins: RegistryLogin; policy: AddressPolicy },
  { host }: ImageReference,
  credential: PullCredential | undefined,
  projectId: string | undefined,
): PullAccess {
  const login: PullAccess['login'] = async (signal) =>
    credential && (await logins.of({ host, ...credential }, signal));
  const scope = credential === undefined ? 'public' : privateScope(host, credential, projectId);
  return {
    owner: { project: projectId ?? '', host },
    login,
    of: async (signal, share) => ({
      credential: await login(signal),
      policy,
      scopes: ['public', scope],
      scope,
      fetched: () => share[Symbol.dispose](),
    }),
  };
}

/** Without a project, layers are shared by pulls with the same credential, as long as this process runs. */
const SCOPE_KEY = randomBytes(32);
function privateScope(
  host: string,
  { username, password }: PullCredential,
  projectId: string | undefined,
): LayerScope {
  if (projectId !== undefined) return `project:${projectId}`;
  const hash = createHmac('sha256', SCOPE_KEY).update(JSON.stringify([host, username, password]));
  return `credential:${hash.digest('hex')}`;
}
